"""What tests run in processes of their own. Functions, which `harness.ranks.on_processes` and `run_local` find here by
name on every rank, and programs, which launchers start by their file (`FOLDER / "faults.py"`): these need nothing but
halocline.

A function that one test alone runs on ranks can as well stand in the test's own file.
"""

from pathlib import Path

FOLDER = Path(__file__).parent
