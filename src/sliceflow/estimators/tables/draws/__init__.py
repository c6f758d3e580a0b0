"""The chain of models that draws new rows, one column after the other.

1. `chain.py` fits the models of all columns, and draws rows by them. Its first lines
   follow one cell.
2. `column_model.py` is the model of one column given those before it. Its strategy is
   one of `strategies.py`.
3. `cell_sources.py`: a cell may equal an earlier column, be missing, follow from a
   rule, or come from a tree.
4. `trees.py` has the trees. `tree_draws.py` draws a cell from a node of a tree, until
   the rules allow it.
5. `ridge_regression.py`: some numbers are what a regression predicts, plus a residual
   from a tree.
6. `partly_drawn_rows.py`: rows while they are drawn, and which cells they may have.
7. `rare_numbers.py` moves drawn numbers that few rows have.

In small tables, a random row and its neighbors may draw several columns together:

8. `neighbor_columns.py` says in which tables, and which columns.
9. `neighbors_model.py` is this model.
10. `row_distances.py` measures how near rows are to others. Only trials ask for that.
"""
