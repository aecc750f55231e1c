"""The frontier of exact verification: its table, its figure, and the shapes that were searched for."""
