"""What a person sees of a run."""

from __future__ import annotations

import io

import pytest

from halocline.schedule.instruction import Instruction
from halocline.train.progress import Lines, Silent, Speed, Standing, clock, progress


def reading(step: int, total: int = 100) -> Standing:
    return Standing(step, total, 0, 1.2345, 812.3, "images", 3 << 30, 130.0, {"loss": 1.0, "accuracy": 0.561})


def test_a_line_every_few_seconds_and_at_the_end() -> None:
    out = io.StringIO()
    lines = Lines(every=1e9, file=out)
    for step in (1, 2, 99, 100):
        lines.show(reading(step))
    lines.say("saved")
    first, last, said = out.getvalue().splitlines()
    assert first == "step 1/100  loss 1.234  accuracy 56.1%  812 images/s  3.00 GiB  2:10 left"
    assert last.startswith("step 100/100") and said == "saved"


def test_verbose_is_a_line_for_every_step_with_its_time() -> None:
    out = io.StringIO()
    lines = Lines(every=1e9, file=out, verbose=True)
    for step in (1, 2, 3):
        lines.show(reading(step))
    assert [line.split("  ")[0] for line in out.getvalue().splitlines()] == ["step 1/100", "step 2/100", "step 3/100"]
    assert out.getvalue().splitlines()[0].endswith("2:10 left  0.000 s")


def test_only_the_first_rank_speaks() -> None:
    assert isinstance(progress(1), Silent)
    assert isinstance(progress(0), Lines)  # there is no terminal here


def test_the_bar_moves(monkeypatch: object) -> None:
    from rich.console import Console

    from halocline.train.progress import Bar

    bar = Bar()
    bar._bar.live.console = bar._bar.live.console.__class__(file=io.StringIO(), force_terminal=True, width=140)
    assert isinstance(bar._bar.console, Console)
    bar.show(reading(3))
    bar.say("50% [saved]")
    bar.close()
    assert bar._bar.tasks[0].completed == 3
    assert "loss 1.234" in bar._bar.tasks[0].fields["words"]


def test_speed_is_that_of_the_last_steps() -> None:
    speed = Speed()
    assert speed.samples_per_second == 0.0
    for _ in range(30):
        speed.add(8, 4.0)
    for _ in range(20):
        speed.add(8, 2.0)
    assert speed.samples_per_second == 4.0 and speed.seconds_per_step == 2.0


def test_clock() -> None:
    assert [clock(s) for s in (5, 65, 4000)] == ["0:05", "1:05", "1:06:40"]


def test_a_run_without_an_end_does_not_say_when_it_ends() -> None:
    out = io.StringIO()
    Lines(every=0.0, file=out).show(reading(7, total=10**9))
    assert out.getvalue() == "step 7  loss 1.234  accuracy 56.1%  812 images/s  3.00 GiB\n"


def test_a_long_step_tells_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    from halocline.train import progress as module

    out = io.StringIO()
    lines = Lines(every=1e9, file=out)
    lines.step_begins(2, None)
    lines.begin(Instruction("forward", 0, 1, 0), None)
    assert out.getvalue() == ""
    monkeypatch.setattr(module, "_LONG", -1.0)
    lines.begin(Instruction("forward", 0, 1, 3), None)
    assert out.getvalue() == "step 3: instruction 2, forward p0 s1 m3\n"
