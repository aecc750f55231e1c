"""The parts of the audit command: the evidence about a verifier,
the processes that collect it, the table.
"""
