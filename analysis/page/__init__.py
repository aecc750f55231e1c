"""The page of a profile, or of one sweep: tables, figures and verdicts in one HTML file."""
