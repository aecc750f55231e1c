"""The harness: from a command line to measured rows."""

from resispec.errors import guard_imports

guard_imports(__name__)
