"""The tables of TabSyn and TabDiff, split and scored as april-tools/tabpc does.

    python benchmarks/standard_tables.py run --data-root DATA --out results.jsonl
    python benchmarks/standard_tables.py run --sets adult magic --measures detection dcr
    python benchmarks/standard_tables.py table --out results.jsonl

tabpc is arXiv 2603.23016. Run with OMP_NUM_THREADS=1 for its CPU seconds. DATA (else
SLICEFLOW_DATA) holds UCI's files, packed or not: adult.data, adult.test, default.csv,
shoppers.csv, magic.data, beijing.csv. Needs xgboost and sdmetrics. Splits are those of
TabDiff: Adult has its own test file, the others 90/10 by numpy's seed 1234, and one
seed more until the larger part has all categories. Numbers go through float32. Magic
loses its first row, which TabDiff reads as a header.

c2st      2·(1 − AUC) of XGBoost by 3 folds, samples against training rows, as many:
          more is better
heldout   AUC of these trees on held-out rows against samples they did not see: ½ is
          ideal
shape, trend   of SDMetrics' quality report: 1 is ideal
alpha, beta    α-precision and β-recall of synthcity; fresh real rows have a β-recall of
               ½
mle       AUC (Beijing: RMSE) on test rows of XGBoost trained on samples
dcr       share of samples nearer to the fitted half than to the other, also exchanged:
          ½ is ideal
copies    % of samples nearer to a training row than the nearest 1 % of test rows are: 1
          is ideal
exact     % of samples that are a training row, beside that of test rows
"""

import argparse
import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numba
import numpy as np
import pandas as pd
from report import Row, script_parser

from sliceflow import TableFlow

SETS = ("adult", "default", "shoppers", "magic", "beijing")
ADULT_COLUMNS = [
    "age",
    "workclass",
    "fnlwgt",
    "education",
    "education.num",
    "marital.status",
    "occupation",
    "relationship",
    "race",
    "sex",
    "capital.gain",
    "capital.loss",
    "hours.per.week",
    "native.country",
    "income",
]
MAGIC_COLUMNS = [
    "Length",
    "Width",
    "Size",
    "Conc",
    "Conc1",
    "Asym",
    "M3Long",
    "M3Trans",
    "Alpha",
    "Dist",
    "class",
]
# The places of the columns of numbers, the target aside, and of the target.
NUMBERS = {
    "adult": [0, 2, 4, 10, 11, 12],
    "default": [0, 4, *range(11, 23)],
    "shoppers": [*range(10)],
    "magic": [*range(10)],
    "beijing": [5, 6, 7, 9, 10, 11],
}
TARGET = {"adult": 14, "default": 23, "shoppers": 17, "magic": 10, "beijing": 4}
PUBLISHED = {  # the published C2ST of each set, by the same script
    "TabSyn": (0.794, 0.402, 0.655, 0.760, 0.527),
    "TabDiff": (0.841, 0.591, 0.736, 0.773, 0.772),
    "TabPC": (0.855, 0.262, 0.894, 0.860, 0.570),
}
# TabDiff's first seed of a split, and how many more are tried.
FIRST_SPLIT_SEED = 1234
N_SPLIT_SEEDS = 1000


# --- the tables -----------------------------------------------------------------------


def read(root: Path, file: str, **options: Any) -> pd.DataFrame:
    """A file of DATA, packed or not; options are those of `pandas.read_csv`."""
    for ending in (".xz", ".gz", ""):
        path = root / (file + ending)
        if path.exists():
            return pd.read_csv(path, **options)
    raise FileNotFoundError(f"{root / file} does not exist; pass --data-root")


def read_adult(root: Path, file: str) -> pd.DataFrame:
    """A file of Adult, whose texts have spaces and dots around them."""
    frame = read(root, file, keep_default_na=False)
    frame.columns = ADULT_COLUMNS
    for name in frame:
        if not pd.api.types.is_numeric_dtype(frame[name]):
            frame[name] = frame[name].str.strip().str.strip(".")
    return frame


def read_set(root: Path, name: str) -> tuple[pd.DataFrame, pd.DataFrame | None]:
    """All rows in UCI's order; of Adult, training rows and test rows."""
    if name == "adult":
        return read_adult(root, "adult.data"), read_adult(root, "adult.test")
    if name == "default":
        return read(root, "default.csv").drop(columns="ID"), None
    if name == "shoppers":
        frame = read(root, "shoppers.csv")
        return frame.assign(Revenue=frame["Revenue"].astype(bool)), None
    if name == "magic":
        frame = read(root, "magic.data", sep=r"\s+", header=0)
        frame.columns = MAGIC_COLUMNS
        return frame, None
    return read(root, "beijing.csv").iloc[:, 1:].dropna().reset_index(drop=True), None


@dataclass(frozen=True, eq=False)
class Split:
    """Training and test rows of a table, and the places of its columns."""

    name: str
    train: pd.DataFrame
    test: pd.DataFrame
    target: int
    number_features: list[int]  # numbers, the target aside
    numbers: list[int]  # numbers, with the target if it is one
    categories: list[int]  # all others
    regression: bool  # whether the target is a number


def load_split(root: Path, name: str, half: bool) -> Split:
    """The rows of the benchmark, or halves of all rows for `dcr`."""
    frame, test = read_set(root, name)
    target = TARGET[name]
    number_features = NUMBERS[name]
    numbers = list(number_features)
    category_features = []
    for column in range(frame.shape[1]):
        if column != target and column not in number_features:
            category_features.append(column)
    categories = list(category_features)
    regression = name == "beijing"
    if regression:
        numbers.append(target)
    else:
        categories.append(target)
    if half:
        if test is not None:
            frame = pd.concat([frame, test], ignore_index=True)
        frame, test = divide(frame, category_features, 0.5)
    elif test is None:
        frame, test = divide(frame, category_features, 0.9)
    single_precision = {frame.columns[c]: np.float32 for c in number_features}
    return Split(
        name=name,
        train=frame.astype(single_precision).reset_index(drop=True),
        test=test.astype(single_precision).reset_index(drop=True),
        target=target,
        number_features=number_features,
        numbers=numbers,
        categories=categories,
        regression=regression,
    )


def divide(
    frame: pd.DataFrame, categories: Sequence[int], share: float
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """A share of the rows that has all categories, and the others, as TabDiff does."""
    order = np.arange(len(frame))
    n = int(len(frame) * share)
    for seed in range(FIRST_SPLIT_SEED, FIRST_SPLIT_SEED + N_SPLIT_SEEDS):
        np.random.seed(seed)  # noqa: NPY002, as TabDiff
        np.random.shuffle(order)  # noqa: NPY002
        train = frame.loc[order[:n]]
        if has_all_levels(train, frame, categories):
            return train, frame.loc[order[n:]]
    raise ValueError("no split has all categories")


def has_all_levels(
    part: pd.DataFrame, frame: pd.DataFrame, categories: Sequence[int]
) -> bool:
    """Whether a part of a table has all levels of these columns."""
    n_levels = part.iloc[:, categories].nunique()
    n_levels_of_all = frame.iloc[:, categories].nunique()
    return bool((n_levels == n_levels_of_all).all())


def draw(train: pd.DataFrame, seed: int) -> tuple[pd.DataFrame, float]:
    """As many samples of a default TableFlow, and CPU seconds of fit and samples."""
    started_at = time.process_time()
    flow = TableFlow(random_state=seed).fit(train)
    synthetic = flow.sample(len(train), random_state=seed + 1)
    return synthetic, time.process_time() - started_at


# --- measures -------------------------------------------------------------------------
# Each takes a split, as many samples as training rows, and a seed.


def detection(split: Split, synthetic: pd.DataFrame, seed: int) -> dict[str, float]:
    """Detectors of samples, by 3 folds: `c2st` and `heldout`."""
    from sklearn.metrics import roc_auc_score
    from sklearn.model_selection import StratifiedKFold
    from xgboost import XGBClassifier

    columns = split.numbers + split.categories
    frames = [split.train, synthetic, split.test]
    all_rows = pd.concat([f.iloc[:, columns] for f in frames], ignore_index=True)
    x = pd.get_dummies(all_rows).to_numpy(np.float32)
    n = len(split.train) + len(synthetic)
    x_test = x[n:]
    x = x[:n]
    y = np.repeat([1, 0], [len(split.train), len(synthetic)])
    train_aucs = []
    test_aucs = []
    folds = StratifiedKFold(3, shuffle=True, random_state=seed)
    for fitted, held_out in folds.split(x, y):
        model = XGBClassifier(random_state=0, n_jobs=1).fit(x[fitted], y[fitted])
        probability = model.predict_proba(x[held_out])[:, 1]
        train_aucs.append(max(0.5, roc_auc_score(y[held_out], probability)))
        of_synthetic = probability[y[held_out] == 0]
        of_test = model.predict_proba(x_test)[:, 1]
        is_test = np.repeat([1, 0], [len(of_test), len(of_synthetic)])
        test_aucs.append(
            roc_auc_score(is_test, np.concatenate((of_test, of_synthetic)))
        )
    return {
        "c2st": 2 * (1 - float(np.mean(train_aucs))),
        "heldout": float(np.mean(test_aucs)),
    }


def quality(split: Split, synthetic: pd.DataFrame, seed: int) -> dict[str, float]:
    """SDMetrics' report: `shape` and `trend`."""
    from sdmetrics.reports.single_table import QualityReport

    columns = split.numbers + split.categories
    numbered = range(len(columns))
    train = split.train.iloc[:, columns].set_axis(numbered, axis=1)
    synthetic = synthetic.iloc[:, columns].set_axis(numbered, axis=1)
    kinds = ["numerical"] * len(split.numbers) + ["categorical"] * len(split.categories)
    metadata = {"columns": {i: {"sdtype": kind} for i, kind in enumerate(kinds)}}
    report = QualityReport()
    report.generate(train, synthetic, metadata, verbose=False)
    shape, trend = report.get_properties()["Score"]
    return {"shape": float(shape), "trend": float(trend)}


def precision_recall(
    split: Split, synthetic: pd.DataFrame, seed: int
) -> dict[str, float]:
    """Naive α-precision and β-recall: `alpha` and `beta`."""
    from sklearn.neighbors import NearestNeighbors
    from sklearn.preprocessing import MinMaxScaler

    all_rows = pd.concat([split.train, synthetic], ignore_index=True)
    dummies = pd.get_dummies(all_rows.iloc[:, split.categories].astype(str))
    numbers = all_rows.iloc[:, split.numbers]
    x = np.hstack([numbers.to_numpy(float), dummies.to_numpy(float)])
    scaler = MinMaxScaler().fit(x[: len(split.train)])
    real, fake = np.split(scaler.transform(x), [len(split.train)])
    levels = np.linspace(0, 1, 30)

    # α-precision: samples in balls around the middle of the real rows.
    real_radii = np.linalg.norm(real - real.mean(0), axis=1)
    fake_radii = np.linalg.norm(fake - real.mean(0), axis=1)
    precision = []
    for radius in np.quantile(real_radii, levels):
        precision.append(np.mean(fake_radii <= radius))

    # β-recall: real rows whose nearest sample is nearer than their nearest real row, of
    # samples in balls around the middle of the samples.
    real_distances, _ = NearestNeighbors(n_neighbors=2).fit(real).kneighbors(real)
    to_real = real_distances[:, 1]
    fake_distances, nearest = NearestNeighbors(n_neighbors=1).fit(fake).kneighbors(real)
    to_fake = fake_distances[:, 0]
    nearest_radii = np.linalg.norm(fake[nearest[:, 0]] - fake.mean(0), axis=1)
    recall = []
    for radius in np.quantile(nearest_radii, levels):
        recall.append(np.mean((to_fake <= to_real) & (nearest_radii <= radius)))
    return {
        "alpha": agreement_of_curve(np.array(precision), levels),
        "beta": agreement_of_curve(np.array(recall), levels),
    }


def agreement_of_curve(curve: np.ndarray, levels: np.ndarray) -> float:
    """1 minus the mean distance of a curve to the diagonal, over its mean height."""
    return float(1 - np.abs(levels - curve).sum() / levels.sum())


def utility(split: Split, synthetic: pd.DataFrame, seed: int) -> dict[str, float]:
    """`mle`: trees that learnt samples, on test rows.

    The best of 36 settings on a ninth of the samples.
    """
    from xgboost import XGBClassifier, XGBRegressor

    x, y = features_and_target(split, synthetic)
    n = len(synthetic)
    x_test = x[n:]
    y_test = y[n:]
    order = np.random.default_rng(seed).permutation(n)
    valid, fitted = np.split(order, [n // 9])
    model_class = XGBClassifier
    if split.regression:
        model_class = XGBRegressor
    best = (-np.inf, np.nan)  # the score of the ninth, and that of test rows
    for weight, depth, gamma in product((1, 10), (5, 10, 20), (0.0, 1.0)):
        model = model_class(
            n_estimators=100,
            min_child_weight=weight,
            max_depth=depth,
            gamma=gamma,
            n_jobs=1,
        )
        model.fit(x[fitted], y[fitted])
        for n_trees in (10, 50, 100):  # the beginnings of a model with 100
            valid_score = prediction_score(model, x[valid], y[valid], n_trees)
            test_score = prediction_score(model, x_test, y_test, n_trees)
            best = max(best, (valid_score, test_score))
    mle = best[1]
    if split.regression:
        mle = -mle
    return {"mle": float(mle)}


def features_and_target(
    split: Split, synthetic: pd.DataFrame
) -> tuple[np.ndarray, np.ndarray]:
    """Of the samples and then of the test rows: features (n, d) and the target (n,).

    The target is a logarithm, or 1 for the second of two levels.
    """
    features = [c for c in range(synthetic.shape[1]) if c != split.target]
    rows = pd.concat([synthetic, split.test], ignore_index=True)
    feature_rows = rows.iloc[:, features]
    texts = [rows.columns[c] for c in features if c not in split.number_features]
    dummies = pd.get_dummies(feature_rows.astype(dict.fromkeys(texts, str)))
    x = dummies.to_numpy(np.float32)
    target = rows.iloc[:, split.target]
    if split.regression:
        return x, np.log(np.clip(target.to_numpy(float), 1, 20_000))
    labels = target.astype(str)
    second_level = sorted(labels.unique())[1]
    return x, (labels == second_level).to_numpy(int)


def prediction_score(model: Any, x: np.ndarray, y: np.ndarray, n_trees: int) -> float:
    """AUC, or minus the RMSE of a regression, of the first trees of a model."""
    from sklearn.metrics import roc_auc_score, root_mean_squared_error
    from xgboost import XGBRegressor

    trees = (0, n_trees)
    if isinstance(model, XGBRegressor):
        return -root_mean_squared_error(y, model.predict(x, iteration_range=trees))
    probability = model.predict_proba(x, iteration_range=trees)[:, 1]
    return roc_auc_score(y, probability)


def closeness(split: Split, synthetic: pd.DataFrame, seed: int) -> dict[str, float]:
    """`copies`, `exact` and `exact_test`, all in per cent.

    tabpc leaves out the categories of Beijing, which are hours that no two rows share.
    """
    scale = split.train.iloc[:, split.numbers].to_numpy(float).std(0)
    categories = split.categories
    if split.regression:
        categories = []
    of_synthetic = nearest_distances(split, synthetic, split.train, scale, categories)
    of_test = nearest_distances(split, split.test, split.train, scale, categories)
    copies = np.mean(of_synthetic < np.quantile(of_test, 0.01))
    return {
        "copies": 100 * float(copies),
        "exact": 100 * share_of_known_rows(synthetic, split.train),
        "exact_test": 100 * share_of_known_rows(split.test, split.train),
    }


def share_of_known_rows(rows: pd.DataFrame, train: pd.DataFrame) -> float:
    """The share of rows that are a training row."""
    known = set(map(tuple, train.astype(str).to_numpy()))
    is_known = [tuple(row) in known for row in rows.astype(str).to_numpy()]
    return float(np.mean(is_known))


def nearest_distances(
    split: Split,
    rows: pd.DataFrame,
    reference: pd.DataFrame,
    scale: np.ndarray,
    categories: Sequence[int],
) -> np.ndarray:
    """The distance (n,) of each row to the nearest row of another table.

    L1 of numbers in units of `scale`, and 2 for every other category.
    """
    scale = np.where(scale > 0, scale, 1)
    row_numbers = rows.iloc[:, split.numbers].to_numpy(float) / scale
    reference_numbers = reference.iloc[:, split.numbers].to_numpy(float) / scale
    all_rows = pd.concat([rows, reference], ignore_index=True)
    codes = np.empty((len(all_rows), len(categories)), np.int32)
    for i, column in enumerate(categories):
        codes[:, i], _ = pd.factorize(all_rows.iloc[:, column].astype(str))
    row_codes, reference_codes = np.split(codes, [len(rows)])
    start = np.random.default_rng(0).integers(len(reference), size=len(rows))
    return _nearest(row_numbers, row_codes, reference_numbers, reference_codes, start)


@numba.njit(fastmath=True)
def _nearest(a_numbers, a_codes, b_numbers, b_codes, start):
    """Distances (n,) of the rows of a to the nearest row of b.

    The search begins at row `start` of b, which is random: a search in order would be
    slow on sorted tables.
    """
    out = np.empty(len(a_numbers))
    for i in range(len(a_numbers)):
        best = 1e30
        for step in range(len(b_numbers)):
            j = (step + start[i]) % len(b_numbers)
            total = 0.0
            for c in range(a_codes.shape[1]):
                if a_codes[i, c] != b_codes[j, c]:
                    total += 2.0
            if total >= best:
                continue
            for c in range(a_numbers.shape[1]):
                total += abs(a_numbers[i, c] - b_numbers[j, c])
                if total >= best:
                    break
            best = min(best, total)
        out[i] = best
    return out


def dcr(halves: Split, seed: int) -> dict[str, float]:
    """The share nearer to the fitted half: `dcr`, `dcr_exchanged` for the other half.

    They are exchanged because one split's share has luck of ± .006.
    """
    return {
        "dcr": share_nearer_to_fitted(halves, halves.train, halves.test, seed),
        "dcr_exchanged": share_nearer_to_fitted(
            halves, halves.test, halves.train, seed
        ),
    }


def share_nearer_to_fitted(
    split: Split, fitted: pd.DataFrame, other: pd.DataFrame, seed: int
) -> float:
    """The share of samples that are nearer to the fitted rows than to the others."""
    synthetic, _ = draw(fitted, seed)
    scale = np.ptp(fitted.iloc[:, split.numbers].to_numpy(float), 0)
    categories = split.categories
    to_fitted = nearest_distances(split, synthetic, fitted, scale, categories)
    to_other = nearest_distances(split, synthetic, other, scale, categories)
    return float(np.mean(to_fitted < to_other))


MEASURES: dict[str, Callable[[Split, pd.DataFrame, int], dict[str, float]]] = {
    "detection": detection,
    "quality": quality,
    "precision_recall": precision_recall,
    "utility": utility,
    "closeness": closeness,
}


# --- the command line -----------------------------------------------------------------


def run(args: argparse.Namespace) -> None:
    """Measure, and write every row at once."""
    for name in args.sets:
        split = load_split(args.data_root, name, half=False)
        halves = load_split(args.data_root, name, half=True)
        for seed in args.seeds:
            synthetic, seconds = draw(split.train, seed)
            row: Row = {"set": name, "seed": seed, "cpu_s": round(seconds, 4)}
            for measure in args.measures:
                if measure == "dcr":
                    numbers = dcr(halves, seed)
                else:
                    numbers = MEASURES[measure](split, synthetic, seed)
                for key, value in numbers.items():
                    row[key] = round(value, 4)
            print(row, flush=True)
            with args.out.open("a") as file:
                file.write(json.dumps(row) + "\n")


def print_table(args: argparse.Namespace) -> None:
    """Means over seeds, beside published numbers."""
    rows = pd.read_json(args.out, lines=True)
    means = rows.groupby("set").mean(numeric_only=True).drop(columns="seed")
    table = means.T.reindex(columns=SETS)
    for method, numbers in PUBLISHED.items():
        table.loc[f"c2st of {method}"] = numbers
    print(table.round(3).to_string())


def main() -> None:
    """The command line."""
    parser = script_parser(__doc__)
    parser.add_argument("command", choices=("run", "table"))
    parser.add_argument(
        "--data-root", type=Path, default=Path(os.environ.get("SLICEFLOW_DATA", "."))
    )
    parser.add_argument("--out", type=Path, default=Path("standard_tables.jsonl"))
    parser.add_argument("--sets", nargs="+", choices=SETS, default=SETS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    measures = (*MEASURES, "dcr")
    parser.add_argument("--measures", nargs="+", choices=measures, default=measures)
    args = parser.parse_args()
    if args.command == "run":
        run(args)
    else:
        print_table(args)


if __name__ == "__main__":
    main()
