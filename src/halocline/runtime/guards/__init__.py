"""Guards: what could not be exact is refused by name, and what went wrong is told in the plan's words."""
