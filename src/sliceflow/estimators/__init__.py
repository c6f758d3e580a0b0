"""Spaces: what rows are (vectors, pictures, tables), and the estimator of each."""
