"""Where transcripts come from: servers of other makers, and prompts to ask them."""
