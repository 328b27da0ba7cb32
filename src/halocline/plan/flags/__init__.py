"""Flags: how words on a command line, keywords of a call and keys of a file become settings.

fields    a tree of frozen dataclasses, each of its settings known by one flag
reader    a command line into what was said, by argparse, and other programs' words into our own
nowdl     now-dl's flags, and what they are called here
merak     Merak's flags, and what they are called here
dialects  what flags of all three say, in Halocline's own words
"""
