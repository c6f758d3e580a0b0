"""Metrics of samples: distances, coverage, copies, calibration, classifiers, FID.

No single number suffices. Distances between distributions do not detect copies, so print `nn_ratio`
and `copies` beside them. Print every metric together with its floor (real rows against real rows):
`with_floor` does so for one metric, `Battery` for all. torch and scikit-learn are imported only when
they are needed. Only FID needs the extra ``sliceflow[metrics]``.
"""

from sliceflow.metrics.battery import MEANING, Battery
from sliceflow.metrics.calibration import Calibration, calibration
from sliceflow.metrics.classifier import PictureClassifier, train_classifier
from sliceflow.metrics.coverage import (
    DensityCoverage,
    PrecisionRecall,
    density_coverage,
    precision_recall,
)
from sliceflow.metrics.distances import energy_distance, sliced_wasserstein
from sliceflow.metrics.floors import Score, with_floor
from sliceflow.metrics.frechet import frechet_distance, frechet_distance_pca
from sliceflow.metrics.inception import FID, fid, inception_features
from sliceflow.metrics.neighbours import (
    copies,
    lookalikes,
    nearest,
    nearest_pictures,
    nn_ratio,
    strays,
)
from sliceflow.metrics.tables import TableReport, table_report
from sliceflow.metrics.two_sample import two_sample_accuracy

__all__ = [
    "FID",
    "MEANING",
    "Battery",
    "Calibration",
    "DensityCoverage",
    "PictureClassifier",
    "PrecisionRecall",
    "Score",
    "TableReport",
    "calibration",
    "copies",
    "density_coverage",
    "energy_distance",
    "fid",
    "frechet_distance",
    "frechet_distance_pca",
    "inception_features",
    "lookalikes",
    "nearest",
    "nearest_pictures",
    "nn_ratio",
    "precision_recall",
    "sliced_wasserstein",
    "strays",
    "table_report",
    "train_classifier",
    "two_sample_accuracy",
    "with_floor",
]
