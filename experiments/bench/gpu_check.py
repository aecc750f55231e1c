"""Says for one release what took the place of a command that is gone."""

import sys

from resispec.errors import fail

if __name__ == "__main__":
    line = (
        "experiments.bench.gpu_check is gone; `make test-gpu` runs the tests that need a CUDA "
        "device"
    )
    sys.exit(fail(f"{line} and times a step"))
