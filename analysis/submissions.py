"""Says for one release what took the place of a command that is gone."""

import sys

from resispec.errors import fail

if __name__ == "__main__":
    line = (
        "analysis.submissions is gone; `make report` writes what to send, see the issue form "
        "`A result`"
    )
    sys.exit(fail(line))
