"""What decoding and verification cost, as ratios within one run."""
