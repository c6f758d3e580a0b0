"""What all estimators share: fits, rows, ranks, model files and checkpoints.

*Fits.* Read these first:

1. `protocols.py`: what is asked of each kind of data. A planner reads rows and plans a
   fit, and a planned fit gives a fitted model.
2. `estimator.py`: `Estimator`, the base class of all estimators.
3. `flow_estimator.py`: `FlowEstimator`, the base class of estimators that are flows.
   Its `run_flow` moves the particles.
4. `fit_plan.py`: plans, which print. `prepared_fit.py`: a planned fit that a user
   holds. `presets.py`: how `preset="paper"` changes parameters.

*Rows.* `rows.py` has rows with their conditions, and appends new rows. `vector_rows.py`
reads the X of users. `removal.py` says which rows are left if some are forgotten; then
all rows that are left are fitted again, with the same seed. `particle_allocation.py`
says which particles a fit moves, and in which order.

*Files.* `saving.py` says what a file holds of an estimator: its parameters and the
`FitRecord`, a tree of frozen dataclasses. `codec.py` turns any such tree into a header
and arrays by its annotations (`saved_types.py`), and checks it when it reads. `file.py`
is the file: safetensors, compressed by zstd. Posteriors use the same file. `packing.py`
puts bytes in an order that compresses well, `atomic.py` writes files completely or not
at all, `memory_budget.py` limits what a file may take, and `saved_steps.py` checks the
steps of a flow.

*Checkpoints.* `checkpoints.py` saves a running flow, and resumes it. `fingerprint.py`
says whether it is the same fit, and `interrupts.py` lets Ctrl-C wait.

*Ranks.* `ranks.py`: one fit on several processes. `distributed.py` fits maps to the
particles of all ranks, and `exact_means.py` gives means that do not depend on how
rows are spread.
"""
