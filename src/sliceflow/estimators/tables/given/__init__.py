"""Given."""
