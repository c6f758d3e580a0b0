"""Pictures: `ImageFlow` and the parts of its fit.

To follow a fit, read these files in this order:

1. `estimator.py` is `ImageFlow`, with the documentation of its parameters. `options.py`
   has the parameters that are rarely changed, and `parameters.py` checks all of them.
   `paper.py` has the values of `preset="paper"`.
2. `fit.py`: `PictureFitPlanner` reads pictures and plans their fit, and a
   `PlannedPictureFit` runs it.
3. `rows.py` has the pictures of a fit. `layout.py` converts them to the engine's
   columns and back, and `clusters.py` divides pictures without labels.
4. `plan.py` has all settings. `choices.py` says what "auto" means, and `costs.py`
   estimates the memory and the time.
5. `flow_builder.py` makes the stages of the flow. `schedules.py` says which resolution
   and patches each has. A stage moves coarse pictures of its resolution (`pyramid.py`)
   by frames whose directions cover one patch each (`tiles.py`). For photographs, such a
   direction combines a few cosines (`cosines.py`).
6. `mosaics.py`: particles may start as sums of pictures. `start_trial.py` decides for
   few color pictures.
7. `training_pictures.py` loads the pictures for each step, and `batching.py` divides
   them.
8. `fitted.py` is the model, which draws samples.

Pictures are completed from a known part (`known_parts.py`) in one of two ways:
`masked_frames.py` has a flow move hidden pixels only. `inpainting.py` needs no flow: it
draws them from similar pictures, and `seams.py` joins both parts.
"""
