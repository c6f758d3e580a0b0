"""Rules between columns: what they are, how they are found, and what follows from them.

1. `kinds.py` has the kinds of rules, such as sums and lookups. Each says which rows
   break it. Most also compute a cell of a row from others.
2. `parse_constraints.py` reads the rules that users write.
3. `search.py` finds others in the rows. It asks `find_lookups.py`, `find_orders.py`,
   `find_products.py` and `find_sums.py`. `evidence.py` says whether enough rows keep a
   rule.
4. `solve.py` computes cells that follow from other cells of their row. Only this module
   solves rules.
5. `rule_set.py` has all rules of a table together. Its first lines list the functions
   that may write cells of a row.
"""
