"""Samples that have what the user asks for, such as `given={"plan": "gold"}`.

1. `given_rows.py` reads what is given: values, lists and ranges. It finds the rows of
   the table that have it.
2. `moved_rows.py`: if few rows have a given number, near rows are moved to it.
3. `texts.py` reads what users type on the command line and on the page.
"""
