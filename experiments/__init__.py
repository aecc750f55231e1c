"""The harness: from a command line to measured rows."""
