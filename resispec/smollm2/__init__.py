"""SmolLM2 has moved to recipes/smollm2."""
