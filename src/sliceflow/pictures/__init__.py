"""Pictures: `ImageFlow`, and what a fit of pictures is made of."""
