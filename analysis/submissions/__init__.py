"""Results that people send, one checked JSON file each, and a comparison with ours: docs/submissions.md."""
