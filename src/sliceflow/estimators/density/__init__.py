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

*Files.* `estimator.py` is `SlicedDensity`, `fit.py` plans and runs its fits, and
`fitted.py` has the models. `plan.py` has what is known before a search. Planning runs
none: `fit.py` does it in `tune`, or, given a continuous y, after the regression. Then
read the map, from the outside to the inside:

1. `support.py` takes bounds and heavy tails away.
2. `gaussianization.py` fits and inverts the flow from data to noise. Its steps have the
   transport and the frames of `engine/noise_transport.py`, the maps of
   `engine/smooth_maps.py`, and an `AnalyticTarget` of `engine/batches.py`.
3. `initial_map.py`: where the flow starts, with a mixture (`mixture.py`) that may grow
   (`mixture_growth.py`).

`settings.py` has the settings of a `Gaussianization`. `settings_search.py` chooses
them, `initial_map_search.py` those of the initial map, both by `trials.py`.
`progress.py` tells listeners of every trial.

With a continuous y, `conditional.py` comes before the flow. It regresses mean, scale
and correlations of all columns on y (`regression.py`), each column in turn
(`column_regression.py`), whose logarithms may fit better (`log_normal.py`). The
regressors are smooth functions of y (`bases.py`), in directions that may be learned
(`learned_directions.py`). `group_selection.py` chooses which of them a column has, and
`ridge.py` solves for their weights.
"""
