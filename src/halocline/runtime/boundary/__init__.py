"""Boundaries: what crosses from one stage to the next, in which boxes, and what each rank must be sent."""
