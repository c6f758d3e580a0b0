"""One flow on many processes or GPUs, by `torch.distributed`."""
