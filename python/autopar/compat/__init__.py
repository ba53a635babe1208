"""Drop-ins for other systems' configuration objects: the same calls, outcomes, and state."""
