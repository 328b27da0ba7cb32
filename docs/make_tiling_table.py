"""Writes the tables of docs/tiling.md from the cases that the tests try: `python docs/make_tiling_table.py`.

With `--check` it only says whether they are up to date. The tests hold every row to what it says.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
DOCUMENT = ROOT / "docs" / "tiling.md"
sys.path.insert(0, str(ROOT / "tests"))

from harness.model_zoo import ENTRIES  # noqa: E402
from harness.networks import NETWORKS  # noqa: E402
from harness.operators import FUNCTIONAL  # noqa: E402


def merged(names: list[str]) -> dict[str, list[str]]:
    """conv1d, conv2d and conv3d in one row, where their cases say the same."""
    rows: dict[str, list[str]] = {}
    for name in names:
        rows.setdefault(re.sub(r"[123]d", "*d", name), []).append(name)
    return rows


def operators() -> str:
    lines = ["| `torch.nn.functional` | on tiles | note |", "|---|---|---|"]
    for row, names in sorted(merged(sorted(FUNCTIONAL)).items()):
        cases = [FUNCTIONAL[n] for n in names]
        assert len({(c.refused, c.note) for c in cases}) == 1, names
        shown = f"`{row.replace('*', '{1,2,3}')}`" if len(names) == 3 else ", ".join(f"`{n}`" for n in names)
        lines.append(f"| {shown} | {'refused' if cases[0].refused else 'exact'} | {cases[0].note} |")
    return "\n".join(lines)


def models() -> str:
    lines = ["| model | on tiles | note |", "|---|---|---|"]
    lines += [f"| {name} | exact | plain torch |" for name in NETWORKS]
    lines += [f"| transformers: {name} | exact | {entry.note} |" for name, entry in ENTRIES.items()]
    return "\n".join(lines)


def filled(text: str) -> str:
    """The document with its tables made anew."""
    for name, table in (("operators", operators()), ("models", models())):
        start, end = f"<!-- {name}: made by docs/make_tiling_table.py -->", f"<!-- end of {name} -->"
        before, found, rest = text.partition(start)
        _, closed, after = rest.partition(end)
        assert found and closed, f"{DOCUMENT} has no place for the {name}"
        text = f"{before}{start}\n\n{table}\n\n{end}{after}"
    return text


def main() -> int:
    text = DOCUMENT.read_text(encoding="utf-8")
    new = filled(text)
    if "--check" in sys.argv:
        if new != text:
            print("docs/tiling.md is out of date; run python docs/make_tiling_table.py")
        return int(new != text)
    DOCUMENT.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
