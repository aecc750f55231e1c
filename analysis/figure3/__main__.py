"""The command of Figure 3: python -m analysis.figure3 --profile embedded."""

import sys

from analysis.figure3.table import main

if __name__ == "__main__":
    sys.exit(main())
