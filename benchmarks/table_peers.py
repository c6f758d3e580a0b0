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
}
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


PEERS = {
    "arf": draw_arf,
    "utrees": draw_utrees,
    "forest": draw_forest,
    "copula": draw_copula,
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
