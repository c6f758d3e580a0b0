"""What the columns of a table are, and the forms of their cells.

Each cell has several forms. Take a column of five prices:

| form         | the cells                        | what for                        |
|--------------|----------------------------------|---------------------------------|
| value        | $5.00, $2.50, –, $10.00, $2.50   | the user passes and gets values |
| code         | 2, 1, −1, 0, 1                   | files; in alphabetical order    |
| position     | 1, 0, −1, 2, 0                   | models; all columns look alike  |
| exact value  | 500, 250, –, 1000, 250           | exact sums and comparisons      |
| grid value   | 250, 0, NaN, 750, 0              | regressions, interpolation      |
| feature      | .52, −.25, −1.28, 1.28, −.25     | distances; scales are alike     |

The *levels* of a column are its different values: here $2.50, $5.00 and $10.00. The
**position** of a cell is its place among the levels of its column, from 0: it does not
say where the cell is in the table. Levels of numbers and times ascend, those of
categories descend by frequency. A missing cell is at −1. A position between two levels
is a new value between them: 0.5 has the grid value 125, which is $3.75. New values are
drawn only where they are plausible (`new_values.py`). `level_positions.py` names the
positions of cells that have no value.

**Exact values** are integers that count a `unit`, here 1/100. A **grid value** counts
`spacing` units from the smallest value, `origin`. The spacing is more than one unit if
all differences are multiples of it, as in a column of whole hours in seconds. So grid
values are whole numbers, and rounding one gives a value that the column can have.
Floats with many decimals have no unit: their exact and grid values are the floats.
The **features** of a cell are the normal score of a number, or one axis for each
frequent level of a category.

`read_values.py` turns values into positions, and `Column.decode` positions into values.
The `Grid` of a column converts between positions, exact values and grid values.

Read the files in this order:

1. `column.py`: a `Column` has the cells, the kind, the levels and the grid.
2. `level_positions.py`: the types of positions, which mypy tells from grid values, and
   the positions of cells that have no value.
3. `grid.py`: the `Grid`, with an example.
4. `formats.py`: exact values, and dates that are written as text.
5. `infer.py` finds out what a column is, from its cells.
6. `new_values.py`: where values may be that do not occur.
7. `read_values.py`: where users' values are in a column.
8. `rare_levels.py`: levels that few rows have, and how they are merged.
9. `column_data.py`: what the model of one column is fitted to.
"""
