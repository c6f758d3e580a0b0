"""``python -m sliceflow`` is the command ``sliceflow``."""

from sliceflow.cli import main

if __name__ == "__main__":
    main()
