"""The tables and figures of Du et al. (ICML 2023): ``python -m benchmarks.paper``.

What they share with the examples and the other benchmarks, which are scripts, is found
beside them.
"""

import sys
from pathlib import Path

for _folder in ("benchmarks", "examples"):
    _path = str(Path(__file__).parents[2] / _folder)
    if _path not in sys.path:
        sys.path.append(_path)
