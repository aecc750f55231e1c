"""The gallery: faults that shipped, rebuilt on the embedded pair, and what finds them; see docs/gallery.md.

bugs: the faults, a few lines each. exhibits: which engines are shown. writing: lets them write transcripts.
checks: what people look at today, perplexity, greedy equality, accepted length and seeds. curve: what the
audit says of the first tokens, and of all. `python -m experiments.gallery` does it all.
"""
