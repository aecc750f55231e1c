"""What is wrong with several siblings only."""
