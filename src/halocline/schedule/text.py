"""Schedules as text, to read, edit and keep: the plan as TOML between two +++ lines, then each rank's instructions, one
a line, as they print themselves. Reading it back proves nothing; the checker does that.

    +++
    schedule = "1f1b"
    microbatches = 1
    ...
    +++

    rank 0
      forward p0 s0 m0
      send activation p0 s0 m0 -> 1
      ...

Blank lines and what follows a # are left out.
"""

from __future__ import annotations

import re

from halocline.plan.layout import ACTIVATION, GRADIENT, Layout
from halocline.plan.plan import Plan
from halocline.plan.require import require_choice
from halocline.schedule.instruction import COMPUTE, FREE, RECEIVE, REDUCE, SEND, STEP, Instruction, Schedule

_FENCE = "+++"
_KINDS = sorted({*COMPUTE, SEND, RECEIVE, FREE, REDUCE, STEP})
_NUMBER = re.compile(r"([psm])(\d+)")


def write(schedule: Schedule) -> str:
    """The text form; `read` gives the same schedule back."""
    lines = [_FENCE, schedule.plan.to_toml().rstrip("\n"), _FENCE]
    for rank, row in enumerate(schedule.ranks):
        lines += ["", f"rank {rank}", *(f"  {instruction}" for instruction in row)]
    return "\n".join(lines) + "\n"


def read(text: str) -> Schedule:
    """The schedule a text describes, unchecked. Errors name the line."""
    lines = text.splitlines()
    plan, after = _read_plan(lines)
    ranks: list[list[Instruction]] = []
    for number, line in enumerate(lines[after:], start=after + 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        try:
            if words[0] == "rank":
                _start_rank(words, len(ranks))
                ranks.append([])
            elif not ranks:
                raise ValueError(f"{' '.join(words)!r} stands before any rank: write 'rank 0' above it")
            else:
                ranks[-1].append(_read_instruction(words))
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from error
    return Schedule(plan, Layout(plan), tuple(map(tuple, ranks)))


def _read_plan(lines: list[str]) -> tuple[Plan, int]:
    """The plan, and how many lines it took."""
    fences = [number for number, line in enumerate(lines) if line.strip() == _FENCE][:2]
    if not fences or any(line.strip() for line in lines[: fences[0]]):
        raise ValueError(f"line 1: a schedule begins with its plan between two {_FENCE} lines: write {_FENCE} first")
    if len(fences) < 2:
        raise ValueError(f"line {fences[0] + 1}: the plan has no end: close it with a second {_FENCE} line")
    first, last = fences
    # Blank lines stand for what comes before the plan, so that TOML's own errors count lines as the file does.
    toml = "\n" * (first + 1) + "\n".join(lines[first + 1 : last]) + "\n"
    try:
        return Plan.from_toml(toml), last + 1
    except ValueError as error:
        raise ValueError(f"lines {first + 1} to {last + 1}: {error}") from error


def _start_rank(words: list[str], expected: int) -> None:
    if words[1:] != [str(expected)]:
        raise ValueError(f"{' '.join(words)!r} where rank {expected} comes next: write 'rank {expected}'")


def _read_instruction(words: list[str]) -> Instruction:
    """What `Instruction.__str__` wrote: kind [activation|gradient] p0 s1 m2 [-> 3 | <- 3]."""
    kind, rest = words[0], words[1:]
    require_choice("instruction", kind, _KINDS)
    if kind == STEP:
        return _whole(Instruction(STEP), words)
    if kind == REDUCE:
        return _whole(Instruction(REDUCE, 0, _numbers(rest, "s", kind)[0]), words)
    if kind in COMPUTE or (kind == FREE and rest[:1] not in ([ACTIVATION], [GRADIENT])):
        pipe, stage, microbatch = _numbers(rest, "psm", kind)
        return _whole(Instruction(kind, pipe, stage, microbatch), words)
    require_choice(f"{kind}'s tensor", rest[0] if rest else "", (ACTIVATION, GRADIENT))
    arrow = "<-" if kind == RECEIVE else "->"
    if len(rest) != 6 or rest[4] != arrow or not rest[5].isdecimal():
        raise ValueError(f"{' '.join(words)!r} names no peer: write '{kind} {rest[0]} p0 s0 m0 {arrow} 1'")
    pipe, stage, microbatch = _numbers(rest[1:4], "psm", f"{kind} {rest[0]}")
    return Instruction(kind, pipe, stage, microbatch, rest[0], int(rest[5]))


def _numbers(words: list[str], letters: str, kind: str) -> list[int]:
    matches = [_NUMBER.fullmatch(word) for word in words[: len(letters)]]
    if len(matches) != len(letters) or any(m is None or m[1] != letter for m, letter in zip(matches, letters)):
        example = " ".join(f"{letter}0" for letter in letters)
        raise ValueError(f"{' '.join([kind, *words])!r} does not read as {' '.join(letters)}: write '{kind} {example}'")
    return [int(match[2]) for match in matches if match is not None]


def _whole(instruction: Instruction, words: list[str]) -> Instruction:
    """The instruction, if it used all the words."""
    if str(instruction).split() != words:
        raise ValueError(f"{' '.join(words)!r} says more than an instruction: write '{instruction}'")
    return instruction
