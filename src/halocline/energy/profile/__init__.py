"""Profiles: the time and energy of each instruction at each frequency, measured in a run or read from its files."""
