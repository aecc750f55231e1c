"""Measurements of a cell: a file a task, with the row that it leaves."""
