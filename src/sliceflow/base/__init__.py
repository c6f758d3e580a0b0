"""Model files and checkpoints: bytes on disk, checked before they are believed."""
