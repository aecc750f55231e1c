"""The gallery: faults that shipped, rebuilt on the embedded pair, and what finds them; see docs/gallery.md.

bugs: the faults, a few lines each. exhibits: the engines that are shown. measures: what each of them writes,
the usual checks, and the audit. page: the table and the figure. `python -m referee.gallery` does it all.
"""
