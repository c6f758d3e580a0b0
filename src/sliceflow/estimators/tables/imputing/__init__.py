"""Missing cells and how they are filled, for `TableFlow.impute`.

1. `filled_dataframes.py` takes the user's DataFrame, and returns copies that are
   filled.
2. `sweeps.py` draws what they are filled with. It goes over the columns again and again
   and draws each missing cell given all other cells of its row.
3. `initial_imputation.py` is the guess from which the sweeps start.
4. `dependent_missing_cells.py` says which missing cells follow from other missing ones
   by a rule. These are computed and not drawn.
"""
