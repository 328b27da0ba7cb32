"""The drawings show what the events say: every box once, in its place and colour, in trace, picture and terminal."""

import json
import xml.etree.ElementTree as ElementTree
from collections import Counter

import pytest

from halocline.plan import Plan, Stage
from halocline.schedule import generate
from halocline.schedule.instruction import COMPUTE, RECEIVE, SEND
from halocline.simulation import Costs, Event, simulate
from halocline.simulation.drawings import chrome_trace, draw_svg, draw_terminal

SVG = "{http://www.w3.org/2000/svg}"


def events(schedule: str = "gems", stages: int = 4, microbatches: int = 8, **costs: float) -> tuple[Event, ...]:
    plan = Plan.uniform(stages, schedule=schedule, microbatches=microbatches, pipes=2 if schedule == "gems" else 1)
    return simulate(generate(plan), Costs(1, 2, **costs), events=True).events


def computed(timeline: tuple[Event, ...]) -> list[Event]:
    return [event for event in timeline if event.instruction.kind in COMPUTE]


def test_trace_has_a_process_per_rank_and_threads_that_never_overlap() -> None:
    timeline = events(latency=0.4)
    rows = json.loads(json.dumps(chrome_trace(timeline)))["traceEvents"]
    times = [row["ts"] for row in rows if "ts" in row]
    assert times == sorted(times)
    names = {row["pid"]: row["args"]["name"] for row in rows if row["name"] == "process_name"}
    assert names == {rank: f"rank {rank}" for rank in range(4)}
    slices = [row for row in rows if row["ph"] == "X"]
    assert len(slices) == len(timeline)
    ends: dict[tuple[int, int], float] = {}
    for row in slices:
        thread = row["pid"], row["tid"]
        assert row["ts"] >= ends.get(thread, 0) - 1e-3
        ends[thread] = row["ts"] + row["dur"]
    compute = [row for row in slices if row["tid"] == 0 and row["name"] != "step"]
    assert len(compute) == len(computed(timeline))
    assert {row["name"].split()[0] for row in slices if row["tid"] > 0} == {SEND, RECEIVE, "reduce"}


def test_trace_joins_each_send_to_its_receive() -> None:
    rows = chrome_trace(events("1f1b", latency=0.4))["traceEvents"]
    starts = {row["id"]: row for row in rows if row["ph"] == "s"}
    ends = {row["id"]: row for row in rows if row["ph"] == "f"}
    assert len(starts) == 2 * 3 * 8
    assert starts.keys() == ends.keys()
    for number, start in starts.items():
        assert abs(start["pid"] - ends[number]["pid"]) == 1
        assert ends[number]["ts"] >= start["ts"] + 0.4e6 - 1e-3


def test_svg_draws_every_computation_to_scale() -> None:
    timeline = events()
    root = ElementTree.fromstring(draw_svg(timeline, title="a < b & c"))
    boxes = [box for box in root.iter(f"{SVG}rect") if box.find(f"{SVG}title") is not None]
    assert len(boxes) == len(computed(timeline))
    widths = Counter(round(float(box.get("width", "0"))) for box in boxes)
    assert widths == {round(960 / 75 - 1): 32, round(2 * 960 / 75 - 1): 32}
    assert len({box.get("fill") for box in boxes}) == 4, "forward and backward of two pipes"
    right = max(float(box.get("x", "0")) + float(box.get("width", "0")) for box in boxes)
    assert right <= 70 + 960
    labels = Counter(text.text for text in root.iter(f"{SVG}text") if text.get("class") == "box")
    assert labels == {str(m): 8 for m in range(8)}


def test_svg_shows_reductions_and_survives_an_empty_timeline() -> None:
    assert "reduce s0" in draw_svg(events(reduce=2))
    assert "reduce s0" not in draw_svg(events())
    ElementTree.fromstring(draw_svg([]))


@pytest.mark.parametrize("width", [40, 80, 120, 300])
@pytest.mark.parametrize("schedule", ["gems", "1f1b", "zb-h1"])
def test_terminal_keeps_to_the_width(schedule: str, width: int) -> None:
    lines = draw_terminal(events(schedule, microbatches=16), width=width).plain.splitlines()
    rows = [line for line in lines if line.startswith("rank")]
    assert len(rows) == 4
    assert all(len(row) <= width for row in rows)
    assert len({len(row) for row in rows}) == 1


def test_terminal_draws_1f1b_as_textbooks_do() -> None:
    text = draw_terminal(events("1f1b", stages=2, microbatches=3), width=31).plain
    assert text.splitlines()[:2] == [
        "rank 0 F0F1····B0  F2B1  ··B2  ",
        "rank 1 ··F0B0  F1B1  F2B2  ····",
    ]


def test_terminal_leaves_out_ranks_beyond_the_last_row() -> None:
    text = draw_terminal(events("1f1b", stages=6), width=80, rows=4).plain
    assert "rank 3" in text and "rank 4" not in text
    assert "2 more ranks" in text


def test_tiles_are_drawn_as_one_operation_on_each_rank() -> None:
    plan = Plan((Stage((0, 1), tiles=(2, 2)), Stage((1, 2))), "gpipe", 2)
    timeline = simulate(generate(plan), events=True).events
    lines = draw_terminal(timeline, width=80).plain.splitlines()
    assert len({line.split(maxsplit=2)[2] for line in lines[:4]}) == 1
