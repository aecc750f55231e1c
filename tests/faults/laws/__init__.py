"""A right verifier that works with wrong laws."""
