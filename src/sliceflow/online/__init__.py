"""Data that come and go: estimators that absorb rows by counting, and forget them again.

- `growing`: `partial_fit`, `forget` and `refresh`, each done whole or not at all;
- `rows`: the users' rows on their way into the counts, what both estimators share of it;
- `vectors`, `pictures`: what is each one's own;
- `first`: what the first rows decide, and whether the rest of them would have decided the same;
- `counts`: the data's projections in every step, counted; changes to the counts, made and undone;
- `tally`: the histograms, added to and taken from in whole numbers.
"""
