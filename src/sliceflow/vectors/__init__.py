"""Vectors: `SlicedWassersteinFlow`, and what a fit of rows is made of."""
