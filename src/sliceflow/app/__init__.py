"""``sliceflow play``: a page in the browser, served to one person on this computer.

Nothing here knows run folders or reports: the command line passes models, readers and the work.
"""
