"""Nearest neighbours: their search, and new rows drawn along them.

`search` finds the rows nearest to points, and nothing else in the package does that by
Euclidean distances. `local` samples x given y from rows whose y is near. `smoothing`
draws new rows along the nearest rows.
"""
