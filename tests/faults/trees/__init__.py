"""What is wrong with deeper trees only."""
