"""Exact, although they look as if something were wrong."""
