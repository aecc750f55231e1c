"""Tables and figures from raw cells: load, bootstrap, measure, report; one script per artefact."""

from resispec.errors import guard_imports

guard_imports(__name__)

AD_HOC = "sweep"
"""The name of the plans of sweeps that are no artefacts: sweep/NAME.json."""
SLICE = "@"
"""Separator of artefact and digest of the cells in the name of a slice's plan:
"table1@1a2b3c4d".
"""
