"""Posteriors of simulators: parameters given an observation, from simulations alone.

`posterior` makes a `Posterior` from parameters and simulations. It draws samples from
the simulations nearest to an observation, or from a likelihood that is fitted to all
simulations. The methods are named as in sbi.
"""

from sliceflow.inference.posteriors import Posterior, load, posterior

__all__ = ["Posterior", "load", "posterior"]
