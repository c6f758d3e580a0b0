"""How good samples are: one report, and the metrics in it one by one.

`report` compares samples of any kind with held-out rows. Distances between
distributions do not detect copies, so `nn_ratio` and `copy_rate` stand beside them, and
every metric has its reference, what real rows score. `fid` needs the extra
``sliceflow[metrics]``. Searches take ``device="auto"``: a GPU if there is one.
"""

from sliceflow.metrics.attack_results import Attack, Attacks
from sliceflow.metrics.attacks import attack
from sliceflow.metrics.calibration_ranks import Calibration, calibration
from sliceflow.metrics.copying import (
    copy_rate,
    memorized_rate,
    nearest_pictures,
    nn_ratio,
    outlier_rate,
)
from sliceflow.metrics.distances import (
    coverage,
    fid,
    frechet_distance,
    frechet_distance_pca,
    sliced_wasserstein,
    two_sample_score,
)
from sliceflow.metrics.findings import Finding
from sliceflow.metrics.reports import Metric, Report, report
from sliceflow.metrics.rows import nearest
from sliceflow.metrics.verdict import Answer, Verdict, judge

__all__ = [
    "Answer",
    "Attack",
    "Attacks",
    "Calibration",
    "Finding",
    "Metric",
    "Report",
    "Verdict",
    "attack",
    "calibration",
    "copy_rate",
    "coverage",
    "fid",
    "frechet_distance",
    "frechet_distance_pca",
    "judge",
    "memorized_rate",
    "nearest",
    "nearest_pictures",
    "nn_ratio",
    "outlier_rate",
    "report",
    "sliced_wasserstein",
    "two_sample_score",
]
