"""Tables and figures from raw cells: load, bootstrap, measure, report; one script per artefact."""

from resispec.errors import guard_imports

guard_imports(__name__)

SWEEP = "sweep"
"""The name of the plan whose parts are the sweeps of one's own."""
