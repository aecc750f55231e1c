"""Says for one release where a study is that is gone."""

import sys

from resispec.errors import fail

if __name__ == "__main__":
    line = (
        "docs/studies/compiled_forwards.py is gone; commit cb8ac4b3 has it, and "
        "docs/studies/README.md"
    )
    sys.exit(fail(f"{line} says where its answer is"))
