"""One way to draw near a row: search, weights, regressions, draws, and one choice of their width.

`local` draws x given y from the rows whose y is near. `smoothing` draws new rows along the nearest
rows, so that small data are not copied.
"""
