"""The frontier's command: python -m analysis.frontier --profile embedded."""

import sys

from analysis.frontier.table import main

if __name__ == "__main__":
    sys.exit(main())
