"""Ranks that are threads of one process, for tests."""

import threading
from concurrent.futures import ThreadPoolExecutor

import torch


class Threads:
    """Ranks that are threads of this process."""

    def __init__(self, size):
        self.size = size
        self._barrier = threading.Barrier(size)
        self._parts = []

    def _combined(self, part, reduce):
        self._parts.append(part)
        self._barrier.wait()
        out = reduce(torch.stack(list(self._parts)))
        if self._barrier.wait() == 0:
            self._parts.clear()
        self._barrier.wait()
        return out

    def sum_(self, part):
        return self._combined(part, lambda parts: parts.sum(0))

    def minimum_(self, part):
        return self._combined(part, lambda parts: parts.amin(0))

    def run(self, work):
        with ThreadPoolExecutor(self.size) as pool:
            return list(pool.map(work, range(self.size)))
