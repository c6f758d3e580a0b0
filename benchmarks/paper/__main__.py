"""The tables and figures of Du et al. (ICML 2023) again.

    python -m benchmarks.paper table1                                   # digits, minutes on a CPU
    python -m benchmarks.paper table1 --scale full --data-root DATA          # one GPU
    python -m benchmarks.paper --scale full --data-root DATA --out runs/paper    # all

Each writes its numbers (table1.json), a table (table1.md) and its pictures to --out.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import gallery

from sliceflow.devices import resolve_device

from .common import SCALES, FlowState
from .figures import FIGURES
from .tables import TABLES

COMMANDS = FIGURES | TABLES


def main(arguments: Sequence[str] | None = None) -> dict[str, list]:
    """Run the commands that are asked for, or all of them."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.paper",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
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
    parser.add_argument(
        "--device", default="auto", help="cpu, cuda, or auto: a GPU if there is one"
    )
    parser.add_argument(
        "--quality", type=int, help="steps per stage; else the scale's and the set's"
    )
    parser.add_argument("--n-particles", type=int)
    parser.add_argument(
        "--fid-weights", type=Path, help="FID's network as .npz: also give FID-768"
    )
    args = parser.parse_args(arguments)
    args.device = str(resolve_device(args.device))
    if unknown := set(args.names) - set(COMMANDS):
        parser.error(f"{', '.join(sorted(unknown))}: there are {', '.join(COMMANDS)}")
    if args.scale == "full" and args.data_root is None and not args.datasets:
        parser.error("--scale full wants --data-root, the folder of the paper's sets")
    args.out.mkdir(parents=True, exist_ok=True)
    command = shlex.join(["python", "-m", "benchmarks.paper", *arguments])
    found = {}
    for name in args.names or COMMANDS:
        work = COMMANDS[name]
        title = f"{name}: {(work.__doc__ or '').strip()}"
        found[name] = work(FlowState(name, title, args, command))
    return found


if __name__ == "__main__":
    main()
