"""Vectors: `SlicedWassersteinFlow` and the parts of its fit.

To follow a fit, read these files in this order:

1. `estimator.py` is `SlicedWassersteinFlow`, with the documentation of its parameters.
   `parameters.py` checks them, and `paper.py` has the values of `preset="paper"`.
2. `fit.py`: `VectorFitPlanner` reads rows and plans their fit, and a `PlannedVectorFit`
   runs it.
3. `plan.py` says what "auto" means for the rows. `costs.py` estimates the memory and
   the time.
4. `training_data.py` has what particles move onto: the rows in the flow's units
   (`scaling.py`), or draws along them (`smoother.py`).
5. `fresh_particles.py`: new particles, to which the model's axis steps are fitted.
6. `fitted.py` is the model, which draws samples.

`local.py` is another way to fit the same rows: samples are drawn near the y that is
asked for, and nothing flows. It has a plan, a fit and a fitted model of its own, and
draws by `neighbors/local.py`.
"""
