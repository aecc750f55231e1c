"""Benches: costs of decoding and verification, as ratios within one run."""
