"""`python -m pelton` is the command line."""

import sys

from pelton.cli import main

if __name__ == "__main__":
    sys.exit(main())
