"""Samples that have what the user asks for, such as `given={"plan": "gold"}`.

1. `read_given.py` reads what is given of each column: a value, a list or a range.
2. `given_rows.py` finds the rows of the table that have what is given.
3. `moved_rows.py`: if few rows have a given number, the rows nearest to the number are
   moved to it.
4. `texts.py` reads what users type on the command line and on the page.

A column may be computed by a rule, as net is in net = price · quantity. What is given
of it is treated in three ways:

- A value is fixed before any column is drawn. The rule is then solved for another of
  its columns, such as the price.
- A range or list of which the column can have just one value is that value.
- Any other range or list is only a rule that samples keep. The others of its columns
  are drawn by a chain that is fitted to the rows that have what is given, and draws
  whose computed cell is not in the range or list are refused. If the range is narrow,
  few draws are in it, and an error says so (`FittedTable`).
"""
