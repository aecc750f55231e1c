"""resispec: the referee of multi-candidate speculative sampling."""

__version__ = "0.1.0"
