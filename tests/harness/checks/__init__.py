"""What tests run in processes of their own. Functions, which `harness.ranks.on_processes` and `run_local` find here by
name on every rank, and programs, which launchers start by their file (`FOLDER / "faults.py"`): these need nothing but
halocline.

A function that one test alone runs on ranks can as well stand in the test's own file.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent


def one_by_one(compare: Callable[..., Any], cases: Iterable[tuple[Any, ...]], **options: Any) -> list[Any]:
    """`compare` for one case after the other, up to the first that fails, whose traceback is the last answer."""
    found: list[Any] = []
    for case in cases:
        try:
            found.append(compare(*case, **options))
        except Exception:
            found.append(traceback.format_exc())
            break
    return found
