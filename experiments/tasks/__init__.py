"""The tasks: one file for each kind of measurement of a cell, with the rows that it gives."""
