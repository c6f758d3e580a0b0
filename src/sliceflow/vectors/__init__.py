"""The rooms behind the door for vectors (`sliceflow.estimator`): all that a fit does before it flows.

- `parameters`: what the parameters may be, and the names of frames and transports;
- `given`: X and y, checked; the rows of a fit and those that are held out;
- `units`: standardised columns, and the way back to the user's units;
- `start`: particles, data and flow, as a fit starts from them;
- `memory`: a fit that cannot fit is refused.
"""
