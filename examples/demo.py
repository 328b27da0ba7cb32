"""The main job, small: trains a ResNet on 256 x 256 images cut into 2x2 tiles, in two stages and two mirrored pipes
(GEMS), on processes of this machine. It holds itself against one device, saves, goes on under another plan, and ends
with the loss curve and the timeline. `make demo` runs it; it takes a minute on two cores.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

from halocline.cli import main

OUT = Path("out") / "demo"
MODEL = "resnet-v1-8 --num-classes 2"
IMAGES = "--lesions --image-size 256 --samples 32 --evaluation-fraction 0.125"
STEPS = "--lr 0.02 --dtype float64 --seed 1"
GEMS = "--split-size 2 --num-spatial-parts 4 --times 2 --batch-size 2"
PIPELINE = "--split-size 2 --parts 2 --schedule 1f1b"
FIRST, ALL = 4, 6


def say(text: str) -> None:
    print(f"\n== {text}", flush=True)


def halocline(line: str) -> None:
    """Runs a command as a user would type it, and stops the demo if it fails."""
    print(f"$ halocline {line}\n", flush=True)
    code = main(line.split())
    if code:
        raise SystemExit(code)


def losses(*runs: Path) -> list[float]:
    """The loss of every step, over runs that continue each other."""
    found = {}
    for run in runs:
        for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines():
            fact = json.loads(line)
            if fact["kind"] == "step":
                found[fact["step"]] = fact["loss"]
    return [found[step] for step in sorted(found)]


def draw(curve: list[float], height: int = 8) -> None:
    """A loss curve in letters: a column per step."""
    low, high = min(curve), max(curve)
    level = [round((value - low) / (high - low or 1) * (height - 1)) for value in curve]
    for row in range(height - 1, -1, -1):
        value = low + (high - low) * row / (height - 1)
        marks = "".join("  o " if at == row else "    " for at in level)
        print(f"{value:8.3f} |{marks}")
    print(f"{'':8} +{'----' * len(curve)}\n{'step':>8}  {''.join(f'{n:>3} ' for n in range(1, len(curve) + 1))}")


def demo() -> None:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    shutil.rmtree(OUT, ignore_errors=True)
    gems, pipeline, one = OUT / "gems", OUT / "pipeline", OUT / "one"

    say("1. The plan: a first stage on 2x2 tiles, a second one whole, two mirrored pipes")
    halocline(f"plan show {GEMS} --balance 3,2 --image-size 256")

    say("2. Is it exact? The same steps under the plan and on one device")
    halocline(f"verify {MODEL} {GEMS} --image-size 64 --steps 1")

    say(f"3. Train {FIRST} steps on five processes, with a timeline, and save")
    halocline(f"train {MODEL} {GEMS} {IMAGES} {STEPS} --steps {FIRST} --timeline --run-dir {gems}")

    say(f"4. Go on to step {ALL} from that checkpoint under another plan: two stages, no tiles, one pipe")
    halocline(f"train --resume {gems} {PIPELINE} --steps {ALL} --run-dir {pipeline}")

    say(f"5. The same {ALL} steps on one process, from the start")
    halocline(f"train {MODEL} --parts 2 --batch-size 4 {IMAGES} {STEPS} --steps {ALL} --run-dir {one}")
    ours, theirs = losses(gems, pipeline), losses(one)
    worst = max(abs(a - b) / max(1e-3, abs(b)) for a, b in zip(ours, theirs, strict=True))
    if worst > 1e-8:
        raise SystemExit(f"the losses differ by {worst:.2e} from one device's: {ours} against {theirs}")

    say(f"6. The loss, by two plans and by one device: they differ by at most {worst:.1e} over {ALL} steps")
    draw(ours)

    say("7. What the five ranks did when, in the first run")
    halocline(f"timeline {gems / 'timeline'} --svg {OUT / 'timeline.svg'} --trace {OUT / 'timeline.trace.json'}")
    say(f"Done. Open {OUT / 'timeline.svg'} in a browser, and {OUT / 'timeline.trace.json'} at ui.perfetto.dev")


if __name__ == "__main__":
    demo()
