"""Shared by all tests: hypothesis' profile, and Triton's interpreter where there is no GPU.

No deadlines, because numba compiles on first use; the same examples every time.
"""

import os

import torch
from hypothesis import settings

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when triton is imported

settings.register_profile("sliceflow", deadline=None, derandomize=True, max_examples=25)
settings.load_profile("sliceflow")
