"""The colours and letters of instructions, shared by every drawing. Pipe 1 has its own hues; a half backward is a
lighter or darker shade of the whole.
"""

from __future__ import annotations

from typing import NamedTuple

from halocline.schedule.instruction import (
    BACKWARD,
    BACKWARD_INPUT,
    BACKWARD_WEIGHT,
    FORWARD,
    RECOMPUTE,
    REDUCE,
    STEP,
    Instruction,
)


class Paint(NamedTuple):
    """How an instruction is drawn."""

    letter: str
    fill: str
    ink: str
    """The colour of text on the fill."""


_WHITE, _BLACK = "#ffffff", "#14202b"
_LETTERS = {FORWARD: "F", RECOMPUTE: "R", BACKWARD: "B", BACKWARD_INPUT: "I", BACKWARD_WEIGHT: "W"}
_FILLS = {
    FORWARD: (("#2f77bb", _WHITE), ("#8a5cc2", _WHITE)),
    RECOMPUTE: (("#e0a030", _BLACK), ("#e0a030", _BLACK)),
    BACKWARD: (("#2b8a66", _WHITE), ("#c04a83", _WHITE)),
    BACKWARD_INPUT: (("#2b8a66", _WHITE), ("#c04a83", _WHITE)),
    BACKWARD_WEIGHT: (("#86cdb0", _BLACK), ("#eaa6c8", _BLACK)),
}
GREY = "#8a929c"


def paint(instruction: Instruction) -> Paint:
    """Letters are capitals in pipe 0 and small in pipe 1."""
    kind, pipe = instruction.kind, instruction.pipe
    if kind not in _FILLS:
        return Paint({REDUCE: "+", STEP: "!"}.get(kind, "-"), GREY, _BLACK)
    fill, ink = _FILLS[kind][pipe]
    letter = _LETTERS[kind]
    return Paint(letter.lower() if pipe else letter, fill, ink)


def legend(instructions: set[tuple[str, int]]) -> list[tuple[str, Paint]]:
    """A name and paint for each (kind, pipe) that occurs, in a fixed order."""
    entries = []
    both = len({pipe for kind, pipe in instructions if kind in _FILLS}) > 1
    for pipe in (0, 1):
        for kind in _FILLS:
            if (kind, pipe) in instructions:
                entries.append((f"{kind}, pipe {pipe}" if both else kind, paint(Instruction(kind, pipe))))
    entries += [(kind, paint(Instruction(kind))) for kind in (REDUCE, STEP) if (kind, 0) in instructions]
    return entries
