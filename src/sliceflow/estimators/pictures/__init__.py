"""Pictures: `ImageFlow` and the parts of its fit."""
