"""A tour without a GPU: plans a spatial GEMS run, saves and shows the plan, proves its schedule, prices and draws it,
and compares other schedules. `make demo` runs it; it takes a few seconds.
"""

from __future__ import annotations

from pathlib import Path

from halocline.cli import main
from halocline.plan import Plan
from halocline.schedule import check, generate
from halocline.schedule.text import read, write
from halocline.simulate import Costs, simulate

OUT = Path("out")
FLAGS = "--split-size 5 --num-spatial-parts 4 --spatial-size 1 --times 4 --parts 1 --batch-size 1 --image-size 8192"


def say(step: str) -> None:
    print(f"\n== {step}", flush=True)


def halocline(line: str) -> None:
    """Runs a command as a user would type it, and stops the tour if it fails."""
    print(f"$ halocline {line}\n", flush=True)
    code = main(line.split())
    if code:
        raise SystemExit(code)


def demo() -> None:
    OUT.mkdir(exist_ok=True)
    plan_file, schedule_file, picture = OUT / "demo.toml", OUT / "demo.schedule", OUT / "demo.svg"

    say("1. Plan: a first stage on 2x2 tiles of an 8192 x 8192 image, four plain stages, two mirrored pipes")
    halocline(f"plan show {FLAGS} --out {plan_file}")
    plan = Plan.load(plan_file)
    assert plan == Plan.from_flags(FLAGS.split()), "a saved plan is the plan"

    say("2. Schedule: every rank's instructions, kept as text and proved again from it")
    schedule = generate(plan)
    schedule_file.write_text(write(schedule), encoding="utf-8")
    check(read(schedule_file.read_text(encoding="utf-8")))
    halocline(f"schedule check {schedule_file}")

    say("3. Simulate: time, bubble, what a rank holds, and the drawing")
    halocline(f"simulate --plan {plan_file} --svg {picture} --trace {OUT / 'demo.trace.json'}")

    say("4. Compare: the same 4 stages and 8 microbatches under other schedules (forward 1, backward 2)")
    print(f"{'schedule':<14}{'makespan':>10}{'bubble':>10}{'activations held':>20}")
    for name, fields in (
        ("layer", {}),
        ("gems", {"pipes": 2}),
        ("gpipe", {}),
        ("1f1b", {}),
        ("chimera", {"pipes": 2}),
        ("zb-h1", {}),
    ):
        result = simulate(generate(Plan.uniform(4, schedule=name, microbatches=8, **fields)), Costs(1, 2))
        print(f"{name:<14}{result.makespan:>10g}{result.bubble:>10.1%}{max(result.peak_activations):>20}")

    say(f"Done. Open {picture} in a browser, and {OUT / 'demo.trace.json'} at ui.perfetto.dev")


if __name__ == "__main__":
    demo()
