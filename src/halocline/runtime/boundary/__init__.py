"""Boundaries between stages: the tensors there (crossings), what ranks send of them (messages), and shapes."""
