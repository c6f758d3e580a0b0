"""The user's rows, as a model stores them.

1. `encoded_columns.py`: an `EncodedColumn` has the levels of a column, which are its
   different values, and the code of each cell. Its first lines have an example.
2. `table_rows.py`: `TableRows` are all columns of a table. `read_dataframe` makes them.
3. `stored_levels.py` says how levels stand in a file, as numbers or as labels.
"""
