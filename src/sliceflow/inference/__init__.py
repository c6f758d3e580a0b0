"""Posteriors of simulators: parameters given an observation, from simulations alone.

`posterior` makes one of parameters and simulations, either from the simulations nearest
to an observation or from a likelihood that is fitted to all of them. The calls are
those of sbi.
"""

from sliceflow.inference.posteriors import Posterior, load, posterior

__all__ = ["Posterior", "load", "posterior"]
