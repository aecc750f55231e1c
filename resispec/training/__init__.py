"""Training of models and drafters; naming a recipe does not import torch."""

CHECKPOINT = "checkpoint.pt"
"""The name of the file from which a stopped training goes on."""
