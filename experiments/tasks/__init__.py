"""What a cell measures: a file a task, with the row that it leaves."""
