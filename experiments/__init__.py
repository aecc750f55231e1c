"""The harness: from a command line to measured rows."""

import sys
from pathlib import Path

# Hydra looks for plugins in every folder named hydra_plugins that is on the path.
sys.path.append(str(Path(__file__).parent / "plugins"))
