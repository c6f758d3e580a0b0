"""How good samples are: one report, and the numbers in it one by one.

`report` compares samples of any kind with held-out rows. No single number suffices: distances between
distributions do not detect copies, so `nn_ratio` and `copies` stand beside them. Every number needs its
floor, what real rows score. torch and scikit-learn are imported only when they are needed; `fid` needs
the extra ``sliceflow[metrics]``. Metrics that search take ``device="auto"``: a GPU if there is one.
"""

from sliceflow.metrics.calibration import Calibration, calibration
from sliceflow.metrics.copying import copies, lookalikes, nearest_pictures, nn_ratio, strays
from sliceflow.metrics.distances import (
    DensityCoverage,
    density_coverage,
    energy_distance,
    frechet_distance,
    frechet_distance_pca,
    sliced_wasserstein,
    two_sample_accuracy,
)
from sliceflow.metrics.fidelity import fid
from sliceflow.metrics.pairs import nearest
from sliceflow.metrics.reports import Number, Report, report

__all__ = [
    "Calibration", "DensityCoverage", "Number", "Report", "calibration", "copies", "density_coverage",
    "energy_distance", "fid", "frechet_distance", "frechet_distance_pca", "lookalikes", "nearest",
    "nearest_pictures", "nn_ratio", "report", "sliced_wasserstein", "strays", "two_sample_accuracy",
]  # fmt: skip
