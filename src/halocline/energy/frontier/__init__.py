"""The frontier: the least energy of an iteration for every time it may take. Pure: reads schedules and profiles."""
