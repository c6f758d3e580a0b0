"""Trials: several ways to draw are compared on the rows, and the best one is taken.

1. `choose_strategies.py` chooses how each column is drawn: by a tree, by a regression,
   or by trees for each level of a label.
2. `choose_neighbors.py` chooses whether neighbors draw the dense numbers of a small
   table, and how many of them.
3. `choose_given_draws.py` chooses how rows are drawn that have something given. No fit
   asks for it: the model does, when it draws.
4. `trial_draws.py` is what 2 and 3 share: a chain of half of the rows draws, and a
   detector tries to tell its draws from the other half.
"""
