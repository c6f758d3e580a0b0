"""Other methods for synthetic tables, each run in an environment of its own.

    python table_peers.py arf SEED

reads train.csv in the working folder, and writes synthetic.csv with as many rows. The
last line it prints has the CPU seconds. `tables.py` copies this file and runs it with
the Python interpreter of the peer's environment, which has numpy and pandas but not
this package.
"""

import importlib
import sys
import time
import warnings

import numpy as np
import pandas as pd

MODULES = {  # imported before the clock starts
    "arf": ("arfpy.arf",),
    "utrees": ("utrees",),
    "forest": ("ForestDiffusion",),
    "copula": ("sdv.metadata", "sdv.single_table"),
    "cart": ("sklearn.tree",),
    "gaussian": ("scipy.stats",),
}
CART_MIN_LEAF = 5  # rows of a leaf, as synthpop has by default
CART_MAX_LEVELS = 30  # of a text that trees predict as classes; of more, their codes
FLAG = " is missing"  # at the end of a column's name: whether its cells are missing


# --- what the peers share -------------------------------------------------------------


def columns_with_gaps(frame: pd.DataFrame) -> list[str]:
    """The columns that have missing cells."""
    return [name for name in frame if frame[name].isna().any()]


def text_columns(frame: pd.DataFrame) -> list[str]:
    """The columns that are not numbers."""
    return [name for name in frame if not pd.api.types.is_numeric_dtype(frame[name])]


def add_flags(frame: pd.DataFrame) -> pd.DataFrame:
    """One more column for each with gaps, which says where these are."""
    frame = frame.copy()
    for name in columns_with_gaps(frame):
        frame[name + FLAG] = np.where(frame[name].isna(), "yes", "no")
    return frame


def remove_flags(frame: pd.DataFrame) -> pd.DataFrame:
    """Missing cells where the flags say so, and no flags."""
    frame = frame.copy()
    for flag in [name for name in frame if name.endswith(FLAG)]:
        is_missing = frame.pop(flag) == "yes"
        frame.loc[is_missing, flag[: -len(FLAG)]] = None
    return frame


def encode_texts(frame: pd.DataFrame) -> tuple[pd.DataFrame, dict[str, pd.Index]]:
    """The frame with numbers for texts, NaN where missing; and the texts by column."""
    encoded = frame.copy()
    levels = {}
    for name in text_columns(frame):
        codes, levels[name] = pd.factorize(frame[name])
        encoded[name] = np.where(codes < 0, np.nan, codes)
    return encoded, levels


def decode_texts(frame: pd.DataFrame, levels: dict[str, pd.Index]) -> pd.DataFrame:
    """The frame with texts for numbers."""
    frame = frame.copy()
    for name, texts in levels.items():
        cells: list[str | None] = []
        for code in frame[name]:
            if pd.isna(code):
                cells.append(None)
            else:
                cells.append(texts[int(code)])
        frame[name] = cells
    return frame


def is_whole(column: pd.Series) -> bool:
    """Whether all numbers of a column are whole."""
    return bool((column.dropna() % 1 == 0).all())


def n_repeats(frame: pd.DataFrame) -> int:
    """How often a boosted peer repeats each row: 5 to 50 times, 10,000 rows in all."""
    return int(np.clip(10_000 // len(frame), 5, 50))


# --- the peers ------------------------------------------------------------------------


def draw_arf(train: pd.DataFrame, seed: int) -> pd.DataFrame:
    """As many rows of an adversarial random forest (arfpy)."""
    from arfpy import arf

    train = add_flags(train)
    for name in columns_with_gaps(train):
        if name in text_columns(train):
            train[name] = train[name].fillna("missing")
        else:
            train[name] = train[name].fillna(train[name].median())
    for name in text_columns(train):
        train[name] = train[name].astype(object)
    model = arf.arf(x=train)
    model.forde()
    return remove_flags(model.forge(n=len(train)))


def draw_utrees(train: pd.DataFrame, seed: int) -> pd.DataFrame:
    """As many rows of UnmaskingTrees."""
    from utrees import UnmaskingTrees

    train = add_flags(train)
    encoded, levels = encode_texts(train)
    kinds = []
    for name in train:
        if name in levels:
            kinds.append("categorical")
        elif is_whole(train[name]):
            kinds.append("integer")
        else:
            kinds.append("continuous")
    model = UnmaskingTrees(random_state=seed, duplicate_K=n_repeats(train))
    model = model.fit(encoded.to_numpy(float, copy=True), quantize_cols=kinds)
    rows = model.generate(n_generate=len(train))
    synthetic = pd.DataFrame(rows, columns=encoded.columns)
    return remove_flags(decode_texts(synthetic, levels))


def draw_forest(train: pd.DataFrame, seed: int) -> pd.DataFrame:
    """As many rows of ForestDiffusion."""
    from ForestDiffusion import ForestDiffusionModel

    train = add_flags(train)
    encoded, levels = encode_texts(train)
    binary = []
    categorical = []
    integer = []
    for i, name in enumerate(train):
        if name in levels and train[name].nunique() <= 2:
            binary.append(i)
        elif name in levels:
            categorical.append(i)
        elif is_whole(train[name]):
            integer.append(i)
    model = ForestDiffusionModel(
        encoded.to_numpy(float, copy=True),
        n_t=10,
        duplicate_K=min(n_repeats(train), 10),
        bin_indexes=binary,
        cat_indexes=categorical,
        int_indexes=integer,
        n_jobs=1,
        seed=seed,
    )
    rows = model.generate(batch_size=len(train))
    synthetic = pd.DataFrame(rows, columns=encoded.columns)
    return remove_flags(decode_texts(synthetic, levels))


def draw_copula(train: pd.DataFrame, seed: int) -> pd.DataFrame:
    """As many rows of SDV's Gaussian copula."""
    from sdv.metadata import Metadata
    from sdv.single_table import GaussianCopulaSynthesizer

    tables = {"t": train}
    metadata = Metadata.detect_from_dataframes(tables, infer_keys=None)
    model = GaussianCopulaSynthesizer(metadata)
    model.fit(tables)
    synthetic = model.sample(len(train))
    if isinstance(synthetic, dict):
        synthetic = synthetic["t"]
    return synthetic


def draw_cart(train: pd.DataFrame, seed: int) -> pd.DataFrame:
    """As many rows of sequential trees, column by column, as synthpop's CART.

    A new cell is that of a random row in the leaf. Texts are numbered; synthpop splits
    their levels freely. A missing number counts as one below the others.
    """
    from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

    rng = np.random.default_rng(seed)
    encoded, levels = encode_texts(train)
    cells = encoded.to_numpy(float)
    lowest = np.nan_to_num(np.nanmin(cells, axis=0))
    known = np.where(np.isnan(cells), lowest - 1, cells)
    n = len(train)
    chosen = rng.integers(n, size=n)
    new_cells = cells[chosen]
    new_known = known[chosen]
    for i, name in enumerate(train):
        if i == 0:
            continue
        tree_class = DecisionTreeRegressor
        if name in levels and len(levels[name]) <= CART_MAX_LEVELS:
            tree_class = DecisionTreeClassifier
        tree = tree_class(min_samples_leaf=CART_MIN_LEAF, random_state=seed)
        tree.fit(known[:, :i], known[:, i])
        rows_of_leaf = pd.Series(range(n)).groupby(tree.apply(known[:, :i])).indices
        for k, leaf in enumerate(tree.apply(new_known[:, :i])):
            row = rng.choice(rows_of_leaf[leaf])
            new_cells[k, i] = cells[row, i]
            new_known[k, i] = known[row, i]
    return decode_texts(pd.DataFrame(new_cells, columns=encoded.columns), levels)


def draw_gaussian(train: pd.DataFrame, seed: int) -> pd.DataFrame:
    """As many rows of a Gaussian copula with the columns' own distributions.

    The levels of texts are ordered by how often they occur, and equal cells have random
    ranks. So a missing cell is one more level.
    """
    from scipy.stats import norm

    rng = np.random.default_rng(seed)
    n = len(train)
    orders = []
    scores = np.empty(train.shape)
    for i, name in enumerate(train):
        column = train[name]
        if name in text_columns(train):
            column = column.map(column.value_counts())
        order = np.lexsort((rng.random(n), column.fillna(-np.inf)))
        orders.append(order)
        scores[order, i] = norm.ppf((np.arange(n) + 0.5) / n)
    covariance = np.corrcoef(scores.T) + 1e-6 * np.eye(train.shape[1])
    drawn = rng.standard_normal(train.shape) @ np.linalg.cholesky(covariance).T
    synthetic = {}
    for i, name in enumerate(train):
        ranks = np.minimum((norm.cdf(drawn[:, i]) * n).astype(int), n - 1)
        synthetic[name] = train[name].to_numpy()[orders[i][ranks]]
    return pd.DataFrame(synthetic)


PEERS = {
    "arf": draw_arf,
    "utrees": draw_utrees,
    "forest": draw_forest,
    "copula": draw_copula,
    "cart": draw_cart,
    "gaussian": draw_gaussian,
}


def main() -> None:
    """Run one peer."""
    peer = sys.argv[1]
    seed = int(sys.argv[2])
    warnings.filterwarnings("ignore")
    np.random.seed(seed)  # noqa: NPY002, the peers draw from it
    # numpy before 2.4 had it, and arfpy 0.1 uses it.
    np.in1d = np.isin  # noqa: NPY201
    for module in MODULES[peer]:
        importlib.import_module(module)
    train = pd.read_csv("train.csv")
    started_at = time.process_time()
    synthetic = PEERS[peer](train, seed)
    columns = [name for name in synthetic if name in train]
    synthetic[columns].to_csv("synthetic.csv", index=False)
    print("seconds", time.process_time() - started_at)


if __name__ == "__main__":
    main()
