"""The frontier: what exact verification can reach. `python -m analysis.frontier` makes it."""
