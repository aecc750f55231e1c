"""Results that people send, a checked JSON file each, and a page that compares them: docs/submissions.md."""
