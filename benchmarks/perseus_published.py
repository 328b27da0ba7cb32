"""What was published of Perseus: the emulation of its artifact (evaluation.ipynb and sosp24_data/ in ml-energy/zeus,
branch kronos, on GitHub), and the paper's own tables (SOSP '24, arXiv 2312.06902).
"""

from __future__ import annotations

import csv
import hashlib
import re
from pathlib import Path
from typing import Any, NamedTuple

from halocline.energy.profile.table import ProfileTable


class Emulated(NamedTuple):
    """What the artifact says of one profile, for one pipeline and one of the eight ranks of a stage."""

    name: str
    blocking_power: float
    intrinsic: dict[int, float]
    """Table 6: microbatches -> share saved."""
    envpipe: dict[int, tuple[float, float]]
    """Microbatches -> seconds and joules of its EnvPipe (the file has ten times the one and eighty times the other)."""


KNOWN = {
    "32e612ff88cb0201": Emulated(
        "GPT-3 175B, A100 SXM",
        83.64,
        {12: 0.15201604, 24: 0.14190355, 48: 0.13616616, 96: 0.13319138},
        {
            12: (2.8365, 503607.718 / 80),
            24: (4.6712, 968871.603 / 80),
            48: (8.3406, 1899399.374 / 80),
            96: (15.6794, 3760454.915 / 80),
        },
    )
}
"""Digest of a profile's rows -> what was published of it."""

_EMULATED = {
    ("GPT-3 175B", "A40"): ((0.1181, 0.1022, 0.0934, 0.0888), 0.2358, 0.0781),
    ("Bloom 176B", "A100 SXM"): ((0.1047, 0.0706, 0.0523, 0.0428), 0.2988, 0.0103),
    ("Bloom 176B", "A40"): ((0.0697, 0.0449, 0.0312, 0.0241), 0.2109, 0.0016),
}
"""Table 6 for 12, 24, 48 and 96 microbatches; Figure 7 for 96 with a straggler of 1.2: Perseus, EnvPipe."""

_MEASURED = {
    ("GPT-3 1.3B", "A100"): (0.132, 0.001, 0.155),
    ("BERT 1.3B", "A100"): (0.129, 0.005, 0.164),
    ("T5 3B", "A100"): (0.106, 0.013, 0.179),
    ("Bloom 3B", "A100"): (0.117, 0.002, 0.152),
    ("Wide-ResNet 1.5B", "A100"): (0.032, 0.023, 0.126),
    ("GPT-3 2.7B", "A40"): (0.211, 0.002, 0.259),
    ("BERT 1.3B", "A40"): (0.157, 0.0, 0.241),
    ("T5 3B", "A40"): (0.285, 0.0, 0.262),
    ("Bloom 3B", "A40"): (0.224, 0.0, 0.259),
    ("Wide-ResNet 1.5B", "A40"): (0.204, 0.002, 0.263),
}
"""Intrinsic saving and slowdown; saved with a straggler of 1.2."""

_COLUMNS = ("model", "GPU", "microbatches", "intrinsic", "slower", "at T' = 1.2", "EnvPipe at T' = 1.2")

ELSEWHERE: list[dict[str, Any]] = [
    dict(zip(_COLUMNS, (*of, count, saved, None, *((late, envpipe) if count == 96 else (None, None)))))
    for of, (all_saved, late, envpipe) in _EMULATED.items()
    for count, saved in zip((12, 24, 48, 96), all_saved)
] + [dict(zip(_COLUMNS, (*of, None, *measured, None))) for of, measured in _MEASURED.items()]
"""The paper's results of other profiles than are here."""


def known(profile: ProfileTable) -> Emulated | None:
    rows = "\n".join(map(repr, sorted(tuple(row) for row in profile.rows)))
    return KNOWN.get(hashlib.sha256(rows.encode()).hexdigest()[:16])


def published_frontier(folder: Path | None, profile: Path, microbatches: int) -> list[tuple[float, float]]:
    """Seconds and joules, rising in time, of the folder's file that begins like the profile and ends with the number of
    microbatches; none where there is no such file."""
    name = re.sub(r"-?profile$", "", profile.stem.replace("_", "-"))
    for path in sorted(folder.glob("*.csv")) if folder is not None else []:
        if path.stem.replace("_", "-").startswith(name) and re.search(rf"\D{microbatches}$", path.stem):
            with path.open(encoding="utf-8") as file:
                try:
                    found = sorted((float(row["time"]), float(row["energy"])) for row in csv.DictReader(file))
                except (KeyError, TypeError, ValueError):
                    raise ValueError(f"{path} is not a published frontier: give rows of time,energy") from None
            if not found:
                raise ValueError(f"{path} holds 0 points: give rows of time,energy")
            return found
    return []
