"""Wrong laws of the bonus token behind a leaf."""
