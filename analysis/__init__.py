"""From raw cells to tables: load, bootstrap, measure, report; one script per artefact."""

SLICE = "@"
"""In the name of a slice's plan, between its artefact and the digest of its cells: "table1@1a2b3c4d"."""
