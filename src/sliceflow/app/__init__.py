"""``sliceflow play``: a page in the browser, served to this computer alone.

`server` answers requests, and refuses those without the token. `points`, `pictures` and `tables` are
what the tabs of the page ask for. The page itself is in ``page``; the flow of points in the plane is
that of ``docs/play``, which is packaged as ``play``.

Nothing here knows run folders: the command line passes `pictures.Run` and the report of a table.
"""
