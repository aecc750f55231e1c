"""The models and texts that come with the package.

They are a text that every installation has, a tokenizer, two targets, drafts that they teach, and
EAGLE drafters.
"""
