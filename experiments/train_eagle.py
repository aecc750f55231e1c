"""Says for one release what took the place of a command that has moved."""

import sys

from resispec.errors import fail

if __name__ == "__main__":
    sys.exit(fail("experiments.train_eagle is gone; `python -m recipes.train_eagle` does the same"))
