"""Tables of mixed columns: `TableFlow`, which returns the columns it was given.

A table is no cloud of particles. Its model is a chain: columns are drawn one after the
other, each cell given those before it in its row.

To follow a fit, read these files in this order:

1. `estimator.py` is `TableFlow`, with the documentation of its parameters.
   `parameters.py` checks them.
2. `fit.py` reads a DataFrame as `TableRows` (`rows/table_rows.py`), or a file, by
   `files.py`. Then it plans the fit: it infers a `Table` of these rows, and gives a
   `PlannedTableFit`.
3. `table.py` has the `Table`: rows, columns, and the rules that hold between them.
4. `plan.py` is the `TablePlan`: in which order and how columns are drawn. What takes a
   trial is chosen when the fit runs.
5. `draws/chain.py` fits the chain, and draws rows. Its first lines follow one cell, and
   draw three rows as an example.
6. `fitted.py` is the model, `FittedTable`. It draws samples, also of what is given.

Two more files: `events.py` has what listeners hear of a fit, and `describe_columns.py`
makes the attribute `columns_`.

The rest is in folders. The first lines of each are a tour of its files. A folder
imports only from the folders below it, and `table.py` stands between two of them:

| folder         | its question                                                        |
|----------------|---------------------------------------------------------------------|
| `imputing`     | How are missing cells filled?                                       |
| `trials`       | What draws a column or a table best?                                |
| `given`        | Which rows have what the user asks for?                             |
| `draws`        | How are new rows drawn?                                             |
| (`table.py`)   |                                                                     |
| `rules`        | What holds between columns?                                         |
| `columns`      | What is a column, and which forms do its cells have?                |
| `identifiers`  | Which columns name persons or rows, and what stands in for them?    |
| `rows`         | How are the user's rows stored?                                     |

Names mean the same in all of these modules:

| name                                   | what it is                                  |
|----------------------------------------|---------------------------------------------|
| `column`, `columns`                    | a `Column`, all columns of the table        |
| `c`, `column_index`, `drawing_order`,  | indices of columns                          |
| `…_indices`                            |                                             |
| `row_indices`                          | indices of rows                             |
| `level_positions`                      | (n, d), positions of rows, all columns      |
| `positions`                            | (n,), positions of one column               |
| `codes`, `exact_values`, `grid_values` | (n,), other forms of the cells of a column  |
| `x`                                    | (n, p), what trees see of rows              |
| `observed`, `is_observed`              | cells that are not missing                  |
| `rows`                                 | `TableRows`: all cells, as the user has them|
| `df`                                   | a DataFrame of pandas                       |

The package `columns` explains positions, codes and the other forms of a cell.
"""
