"""Says for one release where a study is that is gone."""

import sys

from resispec.errors import fail
from resispec.gone import line_of

if __name__ == "__main__":
    sys.exit(fail(line_of("docs/studies/few_rows.py")))
