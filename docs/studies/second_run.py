"""Says for one release where a study is that moved."""

import sys

from resispec.errors import fail

if __name__ == "__main__":
    sys.exit(
        fail("docs/studies/second_run.py is gone; `python -m analysis.second_run` takes its place")
    )
