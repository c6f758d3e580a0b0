"""Imputing."""
