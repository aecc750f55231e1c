"""Wrong tests of a sibling."""
