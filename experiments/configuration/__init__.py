"""From what somebody types to checked values and the objects that they describe; no torch."""
