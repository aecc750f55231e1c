"""Random numbers that are used more than once."""
