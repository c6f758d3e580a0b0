"""Incremental fitting: add rows to an estimator by counting them, and remove them again.

- `growing`: `partial_fit`, `forget` and `refresh`, each all or nothing;
- `rows`: the user's rows and their counts, shared by both estimators (`vectors.online` and
  `pictures.online` hold the rest);
- `first`: decisions of the first rows, and whether the remaining ones would decide the same;
- `counts`: counts of the projected data in every step; changes to them can be undone;
- `tally`: histograms with integer counts, to which values are added and removed.
"""
