"""Parts of the audit command: evidence about verifiers, processes that collect it, the table."""
