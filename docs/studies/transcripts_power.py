"""Says for one release where a study is that moved."""

import sys

from resispec.errors import fail

if __name__ == "__main__":
    line = (
        "docs/studies/transcripts_power.py is gone; `python -m referee.transcripts_power` "
        "takes its place"
    )
    sys.exit(fail(line))
