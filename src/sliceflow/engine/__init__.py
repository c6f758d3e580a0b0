"""The algorithm: flows of particles, one-dimensional transports, directions."""
