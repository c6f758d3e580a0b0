"""The algorithm: flows of particles, one-dimensional transports, directions.

Read `flow.py` first: `simulate` is Algorithm 1 of the paper. What it puts together:

1. `schedule.py`: the stages of a flow.
2. `clouds.py`: points, which are particles or data. `batches.py` says which of them a
   step is fitted to, and what the target is.
3. `frames.py`: the directions of a step, with rotations from `rotations.py`.
4. `transports.py` fits the maps of a step, and `shrinkage.py` moves particles only as
   far as their data justify. The maps themselves are in `maps.py`.
5. `model_steps.py`: what a model stores of a step. `compression.py` makes it small.
6. `random.py`: all random numbers, from a tree of names such as `("frame", 0, 17)`. The
   numbers at a place do not depend on what was drawn elsewhere.
7. `events.py`: what listeners hear of a flow.
8. `wasserstein.py`: the distance in one dimension.

*The condition y.* `labels.py` reads the user's y, `y_encoders.py` encodes it, and
`encoded_y.py` is the engine's form of it. `resolve_map_sharing` in `flow.py` says what
a flow does with y, and `as_flow_y` gives what the flow sees: None if it ignores y, and
`SeparateClassIndices` if every class has maps of its own. `proportions.py` says how
many particles have which condition.

*The other direction.* Densities flow from data to noise. Their transport and frames are
in `noise_transport.py`, and their maps in `smooth_maps.py`. `normal.py` has the density
of the noise.
"""
