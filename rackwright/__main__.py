"""`python -m rackwright`."""

import sys

from rackwright.cli import main

if __name__ == "__main__":
    sys.exit(main())
