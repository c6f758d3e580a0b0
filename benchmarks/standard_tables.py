"""The tables of TabSyn and TabDiff, split and scored as april-tools/tabpc (arXiv
2603.23016) does.

    OMP_NUM_THREADS=1 python benchmarks/standard_tables.py run --data-root DATA --out results.jsonl
    python benchmarks/standard_tables.py run --sets adult magic --seeds 0 1 2 --measures detection dcr
    python benchmarks/standard_tables.py table --out results.jsonl

DATA (else SLICEFLOW_DATA) holds UCI's files, packed or not: adult.data, adult.test,
default.csv, shoppers.csv, magic.data, beijing.csv. Needs xgboost and sdmetrics. Splits
are those of TabDiff: Adult has its own test file, the others 90/10 by numpy's seed
1234, and one seed more until the larger part has all categories. Numbers go through
float32. Magic loses its first row, which TabDiff reads as a header.

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
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numba
import numpy as np
import pandas as pd

from sliceflow import TableFlow

SETS = ("adult", "default", "shoppers", "magic", "beijing")
ADULT = [
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
MAGIC = "Length,Width,Size,Conc,Conc1,Asym,M3Long,M3Trans,Alpha,Dist,class".split(",")  # noqa: SIM905
NUMBERS = {
    "adult": [0, 2, 4, 10, 11, 12],
    "default": [0, 4, *range(11, 23)],
    "shoppers": [*range(10)],
    "magic": [*range(10)],
    "beijing": [5, 6, 7, 9, 10, 11],
}
TARGET = {"adult": 14, "default": 23, "shoppers": 17, "magic": 10, "beijing": 4}
PUBLISHED = {  # the published C2ST, by the same script
    "TabSyn": (0.794, 0.402, 0.655, 0.760, 0.527),
    "TabDiff": (0.841, 0.591, 0.736, 0.773, 0.772),
    "TabPC": (0.855, 0.262, 0.894, 0.860, 0.570),
}


def read(root: Path, file: str, **how: object) -> pd.DataFrame:
    """A file of DATA, packed or not."""
    for ending in (".xz", ".gz", ""):
        if (root / (file + ending)).exists():
            return pd.read_csv(root / (file + ending), **how)
    raise FileNotFoundError(f"{root / file} does not exist; pass --data-root")


def whole_table(root: Path, name: str) -> tuple[pd.DataFrame, pd.DataFrame | None]:
    """All rows in UCI's order; of Adult the test rows apart."""
    if name == "adult":
        parts = [
            read(root, file, keep_default_na=False)
            for file in ("adult.data", "adult.test")
        ]
        for part in parts:
            part.columns = ADULT
            texts = [c for c in part if not pd.api.types.is_numeric_dtype(part[c])]
            part[texts] = part[texts].apply(
                lambda column: column.str.strip().str.strip(".")
            )
        return parts[0], parts[1]
    if name == "default":
        return read(root, "default.csv").drop(columns="ID"), None
    if name == "shoppers":
        frame = read(root, "shoppers.csv")
        return frame.assign(Revenue=frame["Revenue"].astype(bool)), None
    if name == "magic":
        frame = read(root, "magic.data", sep=r"\s+", header=0)
        frame.columns = MAGIC
        return frame, None
    return read(root, "beijing.csv").iloc[:, 1:].dropna().reset_index(drop=True), None


class Split:
    """Training and test rows of a table: those of the benchmark, or halves for `dcr`."""

    def __init__(self, root: Path, name: str, half: bool = False) -> None:
        frame, test = whole_table(root, name)
        self.name = name
        self.numbers = NUMBERS[name]
        self.target = TARGET[name]
        self.regression = name == "beijing"
        fixed = set(self.numbers) | {self.target}
        features = [c for c in range(frame.shape[1]) if c not in fixed]
        if half and test is not None:
            frame = pd.concat([frame, test], ignore_index=True)
            test = None
        if test is None:
            frame, test = _divide(frame, features, 0.5 if half else 0.9)
        self.num = self.numbers + [self.target] * self.regression
        self.cat = features + [self.target] * (not self.regression)
        single = {frame.columns[c]: np.float32 for c in self.numbers}
        self.train = frame.astype(single).reset_index(drop=True)
        self.test = test.astype(single).reset_index(drop=True)


def _divide(
    frame: pd.DataFrame, categories: list[int], share: float
) -> tuple[pd.DataFrame, pd.DataFrame]:
    index = np.arange(len(frame))
    n = int(len(frame) * share)
    for seed in range(1234, 2234):
        np.random.seed(seed)  # noqa: NPY002 - as TabDiff
        np.random.shuffle(index)  # noqa: NPY002
        train = frame.loc[index[:n]]
        if all(
            train.iloc[:, c].nunique() == frame.iloc[:, c].nunique() for c in categories
        ):
            return train, frame.loc[index[n:]]
    raise ValueError("no split has all categories")


def sample(train: pd.DataFrame, seed: int) -> tuple[pd.DataFrame, float]:
    """As many samples of a TableFlow with its defaults, and CPU seconds of fit and
    samples.
    """
    clock = time.process_time()
    flow = TableFlow(random_state=seed).fit(train)
    new = flow.sample(len(train), random_state=seed + 1)
    return new, time.process_time() - clock


# Measures


def detection(split: Split, new: pd.DataFrame, seed: int) -> dict[str, float]:
    """Detectors of samples, by 3 folds."""
    from sklearn.metrics import roc_auc_score
    from sklearn.model_selection import StratifiedKFold
    from xgboost import XGBClassifier

    frames = [
        frame.iloc[:, split.num + split.cat] for frame in (split.train, new, split.test)
    ]
    x = pd.get_dummies(pd.concat(frames, ignore_index=True)).to_numpy(np.float32)
    n = len(split.train) + len(new)
    held = x[len(split.train) + len(new) :]
    y = np.repeat([1, 0], [len(split.train), len(new)])
    trained = []
    heldout = []
    for fit, rest in StratifiedKFold(3, shuffle=True, random_state=seed).split(
        x[:n], y
    ):
        model = XGBClassifier(random_state=0, n_jobs=1).fit(x[fit], y[fit])
        said = model.predict_proba(x[rest])[:, 1]
        trained.append(max(0.5, roc_auc_score(y[rest], said)))
        fakes = said[y[rest] == 0]
        both = np.concatenate([model.predict_proba(held)[:, 1], fakes])
        heldout.append(roc_auc_score(np.repeat([1, 0], [len(held), len(fakes)]), both))
    return {
        "c2st": 2 * (1 - float(np.mean(trained))),
        "heldout": float(np.mean(heldout)),
    }


def quality(split: Split, new: pd.DataFrame, seed: int) -> dict[str, float]:
    """SDMetrics' report."""
    from sdmetrics.reports.single_table import QualityReport

    frames = [
        frame.iloc[:, split.num + split.cat].set_axis(range(frame.shape[1]), axis=1)
        for frame in (split.train, new)
    ]
    kinds = ["numerical"] * len(split.num) + ["categorical"] * len(split.cat)
    report = QualityReport()
    report.generate(
        *frames,
        {"columns": {i: {"sdtype": kind} for i, kind in enumerate(kinds)}},
        verbose=False,
    )
    shape, trend = report.get_properties()["Score"]
    return {"shape": float(shape), "trend": float(trend)}


def precision_recall(split: Split, new: pd.DataFrame, seed: int) -> dict[str, float]:
    """Naive α-precision and β-recall."""
    from sklearn.neighbors import NearestNeighbors
    from sklearn.preprocessing import MinMaxScaler

    both = pd.concat([split.train, new], ignore_index=True)
    texts = pd.get_dummies(both.iloc[:, split.cat].astype(str))
    x = np.hstack([both.iloc[:, split.num].to_numpy(float), texts.to_numpy(float)])
    scaler = MinMaxScaler().fit(x[: len(split.train)])
    real, fake = np.split(scaler.transform(x), [len(split.train)])
    levels = np.linspace(0, 1, 30)
    away = np.linalg.norm(fake - real.mean(0), axis=1)
    radii = np.quantile(np.linalg.norm(real - real.mean(0), axis=1), levels)
    to_real = NearestNeighbors(n_neighbors=2).fit(real).kneighbors(real)[0][:, 1]
    to_fake, at = (
        a[:, 0] for a in NearestNeighbors(n_neighbors=1).fit(fake).kneighbors(real)
    )
    closest = np.linalg.norm(fake[at.astype(int)] - fake.mean(0), axis=1)
    around = np.quantile(closest, levels)
    precision = np.array([np.mean(away <= r) for r in radii])
    recall = np.array([np.mean((to_fake <= to_real) & (closest <= r)) for r in around])
    found = [
        1 - np.abs(levels - curve).sum() / levels.sum() for curve in (precision, recall)
    ]
    return {"alpha": float(found[0]), "beta": float(found[1])}


def utility(split: Split, new: pd.DataFrame, seed: int) -> dict[str, float]:
    """The best of 36 settings on a ninth of the samples."""
    from sklearn.metrics import roc_auc_score, root_mean_squared_error
    from xgboost import XGBClassifier, XGBRegressor

    columns = [c for c in range(new.shape[1]) if c != split.target]
    texts = [new.columns[c] for c in columns if c not in split.numbers]
    both = pd.concat([new, split.test], ignore_index=True)
    x = pd.get_dummies(
        both.iloc[:, columns].astype(dict.fromkeys(texts, str))
    ).to_numpy(np.float32)
    y = both.iloc[:, split.target]
    if split.regression:
        y = np.log(np.clip(y.to_numpy(float), 1, 20_000))
    else:
        y = (y.astype(str) == sorted(y.astype(str).unique())[1]).to_numpy(int)
    order = np.random.default_rng(seed).permutation(len(new))
    n = len(new)
    best = (-np.inf, np.nan)
    valid, fit = np.split(order, [n // 9])
    kind = XGBRegressor if split.regression else XGBClassifier
    for weight, depth, gamma in [
        (w, d, g) for w in (1, 10) for d in (5, 10, 20) for g in (0.0, 1.0)
    ]:
        model = kind(
            n_estimators=100,
            min_child_weight=weight,
            max_depth=depth,
            gamma=gamma,
            n_jobs=1,
        )
        model.fit(x[fit], y[fit])
        for trees in (10, 50, 100):  # the beginnings of a model with 100
            within = {"iteration_range": (0, trees)}
            if split.regression:
                said = [model.predict(part, **within) for part in (x[valid], x[n:])]
                found = [
                    -root_mean_squared_error(y[valid], said[0]),
                    root_mean_squared_error(y[n:], said[1]),
                ]
            else:
                said = [
                    model.predict_proba(part, **within)[:, 1]
                    for part in (x[valid], x[n:])
                ]
                found = [
                    roc_auc_score(y[valid], said[0]),
                    roc_auc_score(y[n:], said[1]),
                ]
            best = max(best, (found[0], found[1]))
    return {"mle": float(best[1])}


@numba.njit(fastmath=True)
def _nearest(a_num, a_cat, b_num, b_cat, start):
    """L1 distance, 2 for another category, to the nearest row of b."""
    out = np.empty(len(a_num))
    for i in range(len(a_num)):
        best = 1e30
        for s in range(len(b_num)):
            j = (s + start[i]) % len(b_num)
            total = 0.0
            for c in range(a_cat.shape[1]):
                if a_cat[i, c] != b_cat[j, c]:
                    total += 2.0
            if total >= best:
                continue
            for c in range(a_num.shape[1]):
                total += abs(a_num[i, c] - b_num[j, c])
                if total >= best:
                    break
            best = min(best, total)
        out[i] = best
    return out


def distances(
    split: Split,
    rows: pd.DataFrame,
    to: pd.DataFrame,
    scale: np.ndarray,
    cat: list[int],
) -> np.ndarray:
    """The distance of each row to the nearest row of another table."""
    scale = np.where(scale > 0, scale, 1)
    numbers = [frame.iloc[:, split.num].to_numpy(float) / scale for frame in (rows, to)]
    codes = [np.empty((len(frame), 0), np.int32) for frame in (rows, to)]
    if cat:
        both = pd.concat([rows, to], ignore_index=True)
        found = np.stack([pd.factorize(both.iloc[:, c].astype(str))[0] for c in cat], 1)
        codes = np.split(found.astype(np.int32), [len(rows)])
    start = np.random.default_rng(0).integers(len(to), size=len(rows))
    return _nearest(numbers[0], codes[0], numbers[1], codes[1], start)


def closeness(split: Split, new: pd.DataFrame, seed: int) -> dict[str, float]:
    """tabpc leaves out the categories of Beijing, which are hours that no two rows
    share.
    """
    scale = split.train.iloc[:, split.num].to_numpy(float).std(0)
    cat = [] if split.regression else split.cat
    fake = distances(split, new, split.train, scale, cat)
    held = distances(split, split.test, split.train, scale, cat)
    known = set(map(tuple, split.train.astype(str).to_numpy()))
    exact = [
        100 * np.mean([tuple(row) in known for row in frame.astype(str).to_numpy()])
        for frame in (new, split.test)
    ]
    copies = 100 * np.mean(fake < np.quantile(held, 0.01))
    return {
        "copies": float(copies),
        "exact": float(exact[0]),
        "exact_test": float(exact[1]),
    }


def dcr(split: Split, seed: int) -> dict[str, float]:
    """Here `split` are halves, which are also exchanged: one split's share has luck of
    ± .006.
    """
    found = {}
    halves = (split.train, split.test)
    for key, (own, other) in {"dcr": halves, "dcr_exchanged": halves[::-1]}.items():
        new, _ = sample(own, seed)
        scale = np.ptp(own.iloc[:, split.num].to_numpy(float), 0)
        near = distances(split, new, own, scale, split.cat)
        far = distances(split, new, other, scale, split.cat)
        found[key] = float(np.mean(near < far))
    return found


MEASURES = {
    "detection": detection,
    "quality": quality,
    "precision_recall": precision_recall,
    "utility": utility,
    "closeness": closeness,
}


def run(args: argparse.Namespace) -> None:
    """Measure, and keep every row."""
    for name in args.sets:
        split = Split(args.data_root, name, half=False)
        halves = Split(args.data_root, name, half=True)
        for seed in args.seeds:
            new, seconds = sample(split.train, seed)
            row = {"set": name, "seed": seed, "cpu_s": seconds}
            for measure in args.measures:
                row |= (
                    dcr(halves, seed)
                    if measure == "dcr"
                    else MEASURES[measure](split, new, seed)
                )
            row = {
                key: round(v, 4) if isinstance(v, float) else v
                for key, v in row.items()
            }
            print(row, flush=True)
            with args.out.open("a") as file:
                file.write(json.dumps(row) + "\n")


def table(args: argparse.Namespace) -> None:
    """Means over seeds, beside published numbers."""
    frame = pd.read_json(args.out, lines=True)
    means = (
        frame.groupby("set")
        .mean(numeric_only=True)
        .drop(columns="seed")
        .T.reindex(columns=SETS)
    )
    for who, numbers in PUBLISHED.items():
        means.loc[f"c2st of {who}"] = numbers
    print(means.round(3).to_string())


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
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
    run(args) if args.command == "run" else table(args)


if __name__ == "__main__":
    main()
