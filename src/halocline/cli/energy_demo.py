"""`halocline energy demo`: the whole of energy in a minute, on a machine without a GPU."""

from __future__ import annotations

import dataclasses
import json
import tempfile
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from halocline.energy.demo import DemoOutcome


@dataclass(frozen=True)
class Options:
    """Starts an energy server and trains a tiny GPT of 4 stages on simulated devices: profiles it while it trains,
    solves for the frontier, deploys the fastest plan, hears of a straggler, and prints what the run measured before and
    after.

    Training is real, on processes of this machine. Times and energies are those of simulated GPUs."""

    straggler: float = 1.2
    """How many times as slow another replica becomes."""
    out: str | None = None
    """Keep the server's and the run's files in this directory."""
    patience: float = 300.0
    """Seconds after which it gives up."""
    json: bool = False
    """Print one JSON object."""


def run(options: Options) -> int:
    if not options.straggler > 1:
        raise ValueError(f"--straggler {options.straggler:g} is not above 1: a straggler is slower, e.g. 1.2")
    from halocline.energy.demo import demonstrate

    with nullcontext(options.out) if options.out else tempfile.TemporaryDirectory(prefix="halocline-") as directory:
        say = (lambda text: None) if options.json else (lambda text: print(text, flush=True))
        outcome = demonstrate(Path(directory), options.straggler, say, options.patience)
    print(json.dumps(_facts(outcome)) if options.json else _table(outcome))
    if options.out and not options.json:
        print(f"wrote {options.out}/")
    return 0 if outcome.reset else 1


def _facts(outcome: DemoOutcome) -> dict[str, Any]:
    before, after, late = outcome.before, outcome.after, outcome.waiting
    return {
        "device": "simulated",
        **dataclasses.asdict(outcome),
        "saved": 1 - after.energy / before.energy,
        "slowdown": after.time / before.time - 1,
        "saved_with_straggler": 1 - outcome.straggler.energy / late.energy,
    }


def _table(outcome: DemoOutcome) -> str:
    facts = _facts(outcome)
    factor = f"straggler {outcome.factor:g}"
    rows = [
        ("all at the highest frequency", outcome.before, ""),
        (
            "deployed",
            outcome.after,
            f"{facts['saved']:.1%} less energy, {facts['slowdown']:+.1%} time",
        ),
        (f"{factor}, highest frequency and waiting", outcome.waiting, ""),
        (
            f"{factor}, deployed",
            outcome.straggler,
            f"{facts['saved_with_straggler']:.1%} less energy",
        ),
    ]
    lines = ["", "simulated devices, an iteration as the run measured it:"]
    lines += [f"  {name:45s} {m.time:7.3f} s {m.energy:8.1f} J   {words}".rstrip() for name, m, words in rows]
    lines.append(f"  blocking power {outcome.blocking_power:.1f} W, {outcome.windows} windows of steps")
    lines.append("  clocks were given back" if outcome.reset else "  CLOCKS WERE NOT GIVEN BACK")
    return "\n".join(lines)
