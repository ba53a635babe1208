"""`python -m autopar` takes the flags of `autopar apss`."""

import sys

from autopar.cli import main

if __name__ == "__main__":
    sys.exit(main(["apss", *sys.argv[1:]]))
