"""``python -m sliceflow``: the command line, which is `cli`."""

from sliceflow.cli import main

if __name__ == "__main__":
    main()
