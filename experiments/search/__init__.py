"""Searches for the tree files that a run needs and does not find."""
