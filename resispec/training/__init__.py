"""Training of models and drafters; naming a recipe takes no torch."""

CHECKPOINT = "checkpoint.pt"
"""Name of the file that a training goes on from."""
