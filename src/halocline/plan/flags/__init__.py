"""Flags: how words on a command line, keywords of a call and keys of a file become settings.

fields    a tree of frozen dataclasses, each of its settings known by one flag
reader    a command line into what was said, by argparse, and other programs' words into our own
nowdl     now-dl's flags, and what they are called here
merak     Merak's arguments, and what they are called here
huggingface  those that Merak inherits from Hugging Face's TrainingArguments
nearest   the flag that a word may have meant which is none
dialects  what flags of all of them say, in Halocline's own words
"""
