"""Densities: how likely rows are, by an invertible map from data to noise.

*Direction.* The other estimators move noise onto data. Here the flow goes backwards:
its particles are the rows, and its target is N(0, I), which is known and so has no
data. Its steps stop once rows look normal. To sample, the map is inverted. The density
of a row is the density of its noise, times the map's Jacobian.

*Maps.* Every part is an `InvertibleMap` (`invertible_maps.py`) of rows to rows. Its
`call_and_ladj` maps rows and gives the log-determinant, and `inverse` goes back. The
function `log_prob` adds the log-density of the noise.

*Shapes.* Rows and noise are (n, d). *Points* are (d, n), as everywhere in the engine;
only the inside of a map has points. Encoded y is (n,) if it is class indices, and
(n, l) if it is continuous. All is float64. The regressions on a continuous y
(`conditional.py`, `regression.py` and what they use) are in numpy, because scipy's
splines and LAPACK are; all else is in torch.

*Order.* `SupportTransform` maps rows to columns without bounds. Without y, or with
classes, a `Gaussianization` (of each class) maps these to noise: an `InitialMap`, then
sliced steps. With a continuous y, a `ConditionalDensity` does: a
`TriangularRegression` takes off what y explains, and a `Gaussianization` maps the
residuals.
"""
