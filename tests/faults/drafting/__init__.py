"""Siblings that were drawn in another way than the rule is told."""
