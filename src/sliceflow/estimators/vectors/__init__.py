"""Vectors: `SlicedWassersteinFlow` and the parts of its fit."""
