"""``sliceflow play``: a page in the browser, served to one person on this computer.

`server` answers requests, and refuses those without the token. `points`, `pictures` and `tables` are
what the tabs of the page ask for. The page itself is in ``page``; the flow of points in the plane is
that of ``docs/play``, which is packaged as ``play``.

Nothing here knows run folders or reports: the command line passes models, readers and the work of the process.
"""
