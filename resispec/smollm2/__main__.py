"""Says for one release what took the place of a command that has moved."""

import sys

from resispec.errors import fail
from resispec.gone import line_of

if __name__ == "__main__":
    sys.exit(fail(line_of("resispec.smollm2")))
