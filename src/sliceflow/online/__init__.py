"""Data that come and go: estimators that absorb rows by counting, and forget them again.

- `counts`: histograms of the data's projections, added to and taken from in whole numbers;
- `growing`: `partial_fit`, `forget` and `refresh`, what both estimators share of them;
- `vectors`, `pictures`: what is each one's own.
"""
