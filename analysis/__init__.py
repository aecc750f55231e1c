"""From raw cells to tables: load, bootstrap, measure, report; one script per artefact."""
