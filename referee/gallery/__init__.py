"""Faults that shipped, rebuilt on the embedded pair, and what finds them; see docs/gallery.md.

bugs: the faults, a few lines each. exhibits: the engines that are shown. measures: what each of
them writes, the usual checks, and the audit. `python -m referee.gallery` measures; `python -m
analysis.gallery` draws.
"""
