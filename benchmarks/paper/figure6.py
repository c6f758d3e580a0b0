"""Figure 6 (Appendix A): joint, ideal and conditional flows of two Gaussians.

python -m benchmarks.paper.figure6
"""

from collections.abc import Sequence

import appendix_a

from .common import command


def main(arguments: Sequence[str] | None = None) -> dict:
    """Draw the five flows; every scale is the same."""
    run = command("Figure 6 (Appendix A): why the amplifier works", "figure6", __doc__, arguments)
    shares = appendix_a.draw(run.path("appendix-a"))
    lines = [[flow, f"{share:.1%}"] for flow, share in shares.items()]
    return run.finish(["flow", "reach the target at their own height"], lines, {"rows": shares})


if __name__ == "__main__":
    main()
