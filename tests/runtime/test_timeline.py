"""The timeline: every instruction is there once, times make sense, reductions run beside computation, and a run that
was cut off can still be read."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from halocline.cli import main
from halocline.plan import Plan
from halocline.plan.layout import Layout
from halocline.runtime.measured import MeasuredRun, file_name, read
from halocline.schedule import generate
from halocline.schedule.instruction import COMPUTE, FREE, REDUCE, STEP
from harness.checks import timeline as check_timeline
from harness.ranks import on_processes

PLANS = {
    "1f1b": Plan.from_flags(split_size=4, parts=4, layers=4),
    "zb-h1": Plan.from_flags(split_size=4, parts=4, layers=4, schedule="zb-h1"),
    "gems": Plan.from_flags(split_size=4, layers=4, times=4),
    "gems tiled": Plan.from_flags(split_size=3, layers=4, times=2, num_spatial_parts=2, slice_method="vertical"),
    "replicas": Plan.from_flags(split_size=2, parts=2, layers=4, replicas=2, recompute="all"),
}


@pytest.fixture(scope="module", params=PLANS)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Plan, Path, MeasuredRun]:
    plan = PLANS[request.param]
    directory = tmp_path_factory.mktemp("timeline")
    on_processes(4, check_timeline.run, plan.to_toml(), str(directory), 3)
    return plan, directory, read(directory)


def test_every_instruction_is_there_once(run: tuple[Plan, Path, MeasuredRun]) -> None:
    plan, _, measured = run
    assert sorted(measured.steps) == [0, 1, 2]
    schedule = generate(plan)
    for events in measured.steps.values():
        for rank in range(plan.world_size):
            mine = schedule.ranks[rank % plan.ranks_per_replica]
            wanted = sorted(i for i in mine if not (i.kind == FREE and i.peer < 0))
            assert sorted(e.instruction for e in events if e.rank == rank) == wanted


def test_times_follow_the_schedule(run: tuple[Plan, Path, MeasuredRun]) -> None:
    plan, _, measured = run
    for events in measured.steps.values():
        assert min(e.start for e in events) >= 0
        assert all(e.end >= e.start and e.wait >= 0 for e in events)
        for rank in range(plan.world_size):
            computed = [e for e in events if e.rank == rank and e.instruction.kind in COMPUTE]
            order = [i for i in generate(plan).ranks[rank % plan.ranks_per_replica] if i.kind in COMPUTE]
            assert [e.instruction for e in computed] == order
            assert all(a.end <= b.start for a, b in itertools.pairwise(computed)), "one thing at a time"


def test_shares_and_bubble_add_up(run: tuple[Plan, Path, MeasuredRun]) -> None:
    _, _, measured = run
    for share in measured.shares():
        assert 0 < share.busy < measured.makespan
        assert share.busy + share.waiting + share.communication <= measured.makespan * 1.001
    assert 0 < measured.bubble < 1
    assert 0 < measured.predicted().makespan < 2 * measured.makespan


def test_reductions_run_beside_computation() -> None:
    """GEMS sums a stage's gradients as soon as it is done: on some rank other stages compute meanwhile or after."""
    plan = PLANS["gems"]
    schedule, layout = generate(plan), Layout(plan)
    assert all(layout.reduces(stage) for stage in range(4))
    for instructions in schedule.ranks:
        kinds = [i.kind for i in instructions]
        assert kinds.count(REDUCE) == 2
    early = [k for k in map(lambda i: [x.kind for x in i], schedule.ranks) if k.index(REDUCE) < _last_compute(k)]
    assert early, "a reduction starts before the last backward of some rank"


def _last_compute(kinds: list[str]) -> int:
    return max(number for number, kind in enumerate(kinds) if kind in COMPUTE)


def test_reductions_end_before_the_step(run: tuple[Plan, Path, MeasuredRun]) -> None:
    plan, _, measured = run
    for events in measured.steps.values():
        for rank in range(plan.world_size):
            step = next(e for e in events if e.rank == rank and e.instruction.kind == STEP)
            for e in events:
                if e.rank == rank and e.instruction.kind == REDUCE:
                    assert e.start <= e.end
                    assert e.end <= step.end


def test_the_timeline_changes_nothing(tmp_path: Path) -> None:
    text = PLANS["gems"].to_toml()
    assert on_processes(4, check_timeline.run, text, str(tmp_path), 2) == on_processes(
        4, check_timeline.run, text, None, 2
    )


def test_a_run_that_was_cut_off_is_read(tmp_path: Path) -> None:
    text = PLANS["1f1b"].to_toml()
    on_processes(4, check_timeline.run, text, str(tmp_path), 2)
    path = tmp_path / file_name(2)
    whole = path.read_text()
    path.write_text(whole[: whole.rindex('"args"')])  # killed while it wrote its last line
    measured = read(tmp_path)
    assert sorted(measured.steps) == [0]
    assert measured.unfinished == (1,)


def test_the_command_merges_and_draws(
    run: tuple[Plan, Path, MeasuredRun], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan, directory, measured = run
    trace, svg = tmp_path / "trace.json", tmp_path / "step.svg"
    assert main(["timeline", str(directory), "--json", "--trace", str(trace), "--svg", str(svg)]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["processes"] == 4
    assert facts["bubble"] == measured.bubble
    assert len(facts["ranks"]) == 4
    rows = json.loads(trace.read_text())["traceEvents"]
    assert sum(row["ph"] == "X" for row in rows) == sum(map(len, measured.steps.values()))
    assert svg.read_text().startswith("<svg")
    assert main(["timeline", str(directory)]) == 0
    out = capsys.readouterr().out
    assert "simulated" in out and plan.schedule in out


def test_a_directory_without_timelines_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["timeline", str(tmp_path)]) == 2
    assert "holds no rank-*.trace.json" in capsys.readouterr().err
    assert main(["timeline", str(tmp_path / "none")]) == 2
    assert "is no directory" in capsys.readouterr().err
    for text in ("[\n", '{"a": 1}\n', "5\n", "\xff\xfe"):
        (tmp_path / file_name(0)).write_text(text, encoding="latin-1")
        assert main(["timeline", str(tmp_path)]) == 2
        assert "does not begin" in capsys.readouterr().err
