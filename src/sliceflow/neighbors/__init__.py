"""Nearest neighbors: their search, and new rows drawn along them.

`search` finds the rows nearest to points. `weights` weighs neighbors by distance, and
`distance_ratios` compares distances of samples with those between rows. `local` samples
x given y from rows whose y is near, by `features` of y, `regressions` on y and
`sampling` along neighbors. `smoothing` draws new rows along the nearest rows.
"""
