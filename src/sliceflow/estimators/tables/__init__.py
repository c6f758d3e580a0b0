"""Tables of mixed columns: `TableFlow`, which returns the columns it was given."""
