"""Speed: tokens a second of the fastest configurations, of one token at a time and of transformers."""
