"""The tables and figures of Du et al. (ICML 2023) again.

    python -m benchmarks.paper table1                              # digits, on a CPU
    python -m benchmarks.paper table1 --scale full --data-root DATA          # one GPU
    python -m benchmarks.paper --scale full --data-root DATA --out runs/paper    # all

Each writes its numbers (table1.json), a table (table1.md) and its pictures to --out.
The digits of one table take minutes.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import gallery
from report import Row, add_device_argument, command_line, script_parser

from sliceflow.devices import resolve_device

from .common import SCALES, PaperRun
from .figures import FIGURES
from .tables import TABLES

COMMANDS = FIGURES | TABLES


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line, checked."""
    parser = script_parser(__doc__)
    parser.prog = "python -m benchmarks.paper"
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(COMMANDS))
    parser.add_argument(
        "--scale", choices=SCALES, default="small", help="small: a CPU; full: a GPU"
    )
    parser.add_argument(
        "--data-root", type=Path, help="folder of the sets; without it, digits"
    )
    parser.add_argument(
        "--datasets", nargs="+", choices=("digits", *gallery.STEPS), metavar="SET"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("runs/paper"), help="folder to write to"
    )
    add_device_argument(parser)
    parser.add_argument(
        "--steps-per-stage", type=int, help="else the scale's and the set's"
    )
    parser.add_argument("--n-particles", type=int)
    parser.add_argument(
        "--fid-weights", type=Path, help="FID's network as .npz: also give FID-768"
    )
    args = parser.parse_args(arguments)
    unknown = set(args.names) - set(COMMANDS)
    if unknown:
        parser.error(f"{', '.join(sorted(unknown))}: there are {', '.join(COMMANDS)}")
    if args.scale == "full" and args.data_root is None and not args.datasets:
        parser.error("--scale full wants --data-root, the folder of the paper's sets")
    return args


def main(arguments: Sequence[str] | None = None) -> dict[str, list[Row]]:
    """Run the commands that are asked for, or all of them."""
    args = parse_arguments(arguments)
    args.device = str(resolve_device(args.device))
    args.out.mkdir(parents=True, exist_ok=True)
    command = command_line("-m benchmarks.paper", arguments)
    names = args.names
    if not names:
        names = list(COMMANDS)
    rows = {}
    for name in names:
        function = COMMANDS[name]
        assert function.__doc__ is not None
        title = f"{name}: {function.__doc__.splitlines()[0]}"
        rows[name] = function(PaperRun(name, title, args, command))
    return rows


if __name__ == "__main__":
    main()
