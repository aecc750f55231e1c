"""Figure 3: where the time of a step goes. `python -m analysis.figure3` makes it."""

from analysis.figure3.table import make

__all__ = ["make"]
