"""Devices: meters that count joules and clocks that can be set, and which of them a run uses."""
