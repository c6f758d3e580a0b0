"""``sliceflow play``: a page in the browser, served to one person on this computer."""
