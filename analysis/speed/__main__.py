"""`python -m analysis.speed --profile embedded`."""

import sys

from analysis.speed.table import main

if __name__ == "__main__":
    sys.exit(main())
