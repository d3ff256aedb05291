"""`python -m lucid.cli`."""

import sys

from lucid.cli import main

if __name__ == "__main__":
    sys.exit(main())
