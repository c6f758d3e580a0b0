"""Identifiers: which columns have them, and new ones."""
