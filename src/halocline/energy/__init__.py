"""At which clock: profiles of time and energy, the frontier of both, and the server and client that put it to work.

Reads schedules as everybody does; knows nothing of tensors.
"""
