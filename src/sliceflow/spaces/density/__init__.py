"""Densities: the flow from data to noise, and back."""
