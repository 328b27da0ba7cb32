"""A GPU that is not there: its times, powers and clock are made up, and say so."""
