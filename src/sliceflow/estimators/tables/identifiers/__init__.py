"""Identifiers: customer numbers, e-mail addresses, names. Samples have new ones.

1. `judgment.py` decides whether a column has identifiers, and says why.
2. `personal.py` recognizes the data of persons, by their values and by the name of
   their column.
3. `new_identifiers.py` makes up identifiers that look like those of a column.
"""
