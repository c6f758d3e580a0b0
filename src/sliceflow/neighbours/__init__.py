"""Draws near a row: `local` of x given a near y, and `smoothing` of new rows along the nearest."""
