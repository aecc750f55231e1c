"""Says for one release what took the place of a command that has moved."""

import sys

from resispec.errors import fail

if __name__ == "__main__":
    sys.exit(fail("resispec.smollm2 is gone; `python -m recipes smollm2` does the same"))
