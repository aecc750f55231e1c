"""Wrong laws of the token after a rejection."""
