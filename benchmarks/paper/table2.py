"""Table 2: the schedules. Ours are the presets of `sliceflow.schedule`; are they still the paper's?

python -m benchmarks.paper.table2
"""

from collections.abc import Sequence

from sliceflow.spaces.pictures import schedules

from .common import command

FINE = "15,13,11,9,7,5,3"
COARSE = "1[1] 2[2] 3[3] 4[4] 5[5] 6[6]"
CIFAR = f"{COARSE} 7[7] 8[8,7,5,3] 12[12,11,9,7,5,3] 16[{FINE}] 24[{FINE}] 32[{FINE}]"
PAPER = {
    "mnist": f"{COARSE} 7[7,5,3] 11[11,9,7,5,3] 14[14,13,11,9,7,5,3] 21[{FINE}] 28[{FINE}]",
    "cifar10": CIFAR,
    "celeba": f"{CIFAR} 64[{FINE}]",
}
SIDES = {"mnist": 28, "cifar10": 32, "celeba": 64}


def main(arguments: Sequence[str] | None = None) -> dict:
    """Compare and print them; every scale is the same."""
    run = command("Table 2: schedules", "table2", __doc__, arguments)
    lines = [
        [
            dataset,
            f"`{text}`",
            str(len(schedules.from_string(text, SIDES[dataset], SIDES[dataset]))),
            "yes" if schedules.PRESETS[dataset] == text else f"no: `{schedules.PRESETS[dataset]}`",
        ]
        for dataset, text in PAPER.items()
    ]
    header = ["set", "the paper's schedule", "stages", "is our preset"]
    return run.finish(header, lines, {"rows": PAPER, "ours": dict(schedules.PRESETS)})


if __name__ == "__main__":
    main()
