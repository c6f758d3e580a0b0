"""The rows of a table as a model stores them."""
