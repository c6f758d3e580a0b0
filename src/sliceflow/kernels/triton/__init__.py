"""The kernels of GPUs, in Triton; imported only where a GPU, or Triton's interpreter, runs them."""
