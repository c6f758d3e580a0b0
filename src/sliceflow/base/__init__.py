"""What all estimators share: fits, rows, ranks, model files and checkpoints."""
