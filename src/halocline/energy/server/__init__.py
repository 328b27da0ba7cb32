"""The energy server: profiles running jobs, solves for the frontier and hands every rank its frequencies. Speaks the
wire of the Zeus pipeline-frequency client, and more.
"""
