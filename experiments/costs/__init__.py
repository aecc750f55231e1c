"""One cost model per device: what a step of any configuration takes, from forwards and walks timed once."""
