"""Hypothesis profile shared by all tests: no deadlines (numba compiles on first use), same examples."""

from hypothesis import settings

settings.register_profile("sliceflow", deadline=None, derandomize=True, max_examples=25)
settings.load_profile("sliceflow")
