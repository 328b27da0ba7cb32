"""Processes: who takes part, how they start, what they tell each other, and what is said when one is gone."""
