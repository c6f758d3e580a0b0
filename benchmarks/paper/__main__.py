"""Every table and figure in turn: ``python -m benchmarks.paper --scale small --out runs/paper``."""

import sys
from importlib import import_module

NAMES = (
    "figure1", "figure2", "figure3", "figure4", "figure5", "figure6", "figure7", "figure9",
    "table1", "table2", "table3", "table4",
)  # fmt: skip


def main(arguments: list[str] | None = None) -> None:
    """Run them all with the same arguments."""
    for name in NAMES:
        import_module(f".{name}", __package__).main(arguments)


if __name__ == "__main__":
    main(sys.argv[1:])
