"""Learning, not only running: the same training on one process, on 2x2 tiles and in GEMS with tiles reaches the same
accuracy on images whose class hangs on a few of 512 x 512 pixels; made four times smaller, the images say nothing.

    OMP_NUM_THREADS=1 python benchmarks/learning.py

Exits with 1 if two plans' accuracies differ by more than 0.5 points.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
TASK = "--lesions --image-size 512 --evaluation-fraction 0.25 --num-classes 2 --seed 0"
RULE = "--optimizer adamw --lr 0.01 --lr-schedule cosine"
PLANS = {
    "one process": ("layers", "--parts 2 --batch-size 8"),
    "2x2 tiles, 2 stages": ("layers", "--parts 2 --batch-size 8 --split-size 2 --num-spatial-parts 4 --balance 3,2"),
    "GEMS + 2x2 tiles": ("layers", "--times 2 --batch-size 4 --split-size 2 --num-spatial-parts 4 --balance 3,2"),
    "one process, images 4 times smaller": ("downsampled", "--parts 2 --batch-size 8"),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=480, help="images, a quarter of them for evaluation")
    parser.add_argument("--epochs", type=int, default=2)
    given = parser.parse_args()
    os.chdir(ROOT)
    sys.path.insert(0, str(ROOT))
    from halocline.cli import main as halocline

    found = {}
    with tempfile.TemporaryDirectory() as directory:
        for number, (name, (model, plan)) in enumerate(PLANS.items()):
            run = Path(directory) / str(number)
            line = f"train examples.lesion_net:{model} {plan} {TASK} {RULE} --samples {given.samples} "
            line += f"--epochs {given.epochs} --run-dir {run} --save-every 0"
            print(f"$ halocline {line}", flush=True)
            started = time.monotonic()
            if halocline(line.split()):
                return 1
            facts = [json.loads(text) for text in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
            last = [fact for fact in facts if fact["kind"] == "evaluation"][-1]
            found[name] = last["accuracy"], last["loss"], time.monotonic() - started
    print(f"\n{platform.processor() or platform.machine()}, {os.cpu_count()} cores; {given.samples} images")
    print(f"{'plan':<38}{'accuracy':>10}{'loss':>12}{'seconds':>10}")
    for name, (accuracy, loss, seconds) in found.items():
        print(f"{name:<38}{accuracy:>10.1%}{loss:>12.3g}{seconds:>10.0f}")
    same = [found[name][0] for name in list(PLANS)[:3]]
    return 0 if max(same) - min(same) <= 0.005 else 1


if __name__ == "__main__":
    sys.exit(main())
