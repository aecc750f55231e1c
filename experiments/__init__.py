"""Entry points: one cell, a sweep of cells, training, benchmarks."""
