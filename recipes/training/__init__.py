"""Training of models and drafters; naming a recipe does not import torch."""
