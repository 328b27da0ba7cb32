"""Each verb by its answers, run inside this process."""

from __future__ import annotations

import json
import math
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

from halocline.cli import main
from halocline.plan import SCHEDULES, Plan, Stage
from halocline.schedule import check
from halocline.schedule.text import read

# -- simulate ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_schedule_is_simulated_by_name_alone(ask: Any, schedule: str) -> None:
    answer = json.loads(ask(f"simulate --schedule {schedule} --json"))
    assert answer["schedule"] == schedule
    assert len(answer["peak_activations"]) == answer["processes"] == 4
    assert sum(answer["busy"]) >= 4 * 8 * 3
    assert math.isclose(answer["bubble"], 1 - sum(answer["busy"]) / 4 / answer["makespan"])


def test_the_same_flags_compare_schedules_fairly(ask: Any) -> None:
    plain = json.loads(ask("simulate --schedule 1f1b --json"))
    chunked = json.loads(ask("simulate --schedule interleaved --chunks 4 --json"))
    assert sum(plain["busy"]) == sum(chunked["busy"])
    assert chunked["stages"] == 16
    assert chunked["bubble"] == pytest.approx(3 / (4 * 8 + 3))


def test_early_recompute_recomputes_all_but_the_last_stage(ask: Any) -> None:
    answer = json.loads(ask("simulate --schedule early-recompute-1f1b --recompute-time 1 --json"))
    assert answer["busy"] == [32, 32, 32, 24]
    assert answer["peak_inputs"] == [4, 3, 2, 0]


def test_replicas_repeat_the_lists(ask: Any) -> None:
    answer = json.loads(ask("simulate --stages 2 --replicas 3 --json"))
    assert answer["peak_activations"] == [2, 1] * 3
    assert len(answer["peak_memory"]) == answer["processes"] == 6


def test_times_and_bytes_per_stage(ask: Any) -> None:
    line = "simulate --forward 1,1,2,1 --backward 2,2,4,2 --weight-bytes 10,20,30,40 --activation-bytes 1 --json"
    answer = json.loads(ask(line))
    assert answer["busy"] == [24, 24, 48, 24]
    assert answer["peak_memory"] == [10 + 4, 20 + 3, 30 + 2, 40 + 1]


def test_a_cap_in_bytes(ask: Any) -> None:
    answer = json.loads(ask("simulate --schedule capped --cap 250 --activation-bytes 100 --json"))
    assert max(answer["peak_memory"]) == 200


def test_tiles_lanes_and_tensor(ask: Any) -> None:
    assert json.loads(ask("simulate --tiles 4,2 --json"))["processes"] == 4 + 2 + 1 + 1
    assert json.loads(ask("simulate --tiles 4 --lanes 2 --json"))["processes"] == 4 + 2 * 3
    assert json.loads(ask("simulate --tensor 2 --json"))["processes"] == 8


def test_trace_and_picture_are_written(ask: Any, tmp_path: Path) -> None:
    trace, picture = tmp_path / "out.json", tmp_path / "out.svg"
    answer = json.loads(ask(f"simulate --schedule chimera --json --trace {trace} --svg {picture}"))
    assert answer["peak_activations"] == [4, 4, 4, 4]
    assert {row["pid"] for row in json.loads(trace.read_text())["traceEvents"]} == {0, 1, 2, 3}
    assert ElementTree.fromstring(picture.read_text()).tag.endswith("svg")
    assert f"wrote {trace}" in ask(f"simulate --trace {trace}")


def test_a_plan_from_a_file_may_be_repeated_but_not_contradicted(ask: Any, tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    Plan((Stage((0, 1), tiles=(2, 2)), Stage((1, 2))), "gems", 4, pipes=2).save(path)
    answer = json.loads(ask(f"simulate --plan {path} --stages 2 --schedule gems --json"))
    assert (answer["processes"], answer["microbatches"]) == (5, 4)
    assert main(["simulate", "--plan", str(path), "--stages", "4"]) == 2


# -- schedule ------------------------------------------------------------------------------------------------------


def test_a_shown_schedule_reads_back_and_is_proved(ask: Any, tmp_path: Path) -> None:
    path = tmp_path / "gems.txt"
    ask(f"schedule show --schedule gems --stages 3 --microbatches 4 --tiles 4 --out {path}")
    assert path.read_text() == ask("schedule show --schedule gems --stages 3 --microbatches 4 --tiles 4")
    check(read(path.read_text()))
    answer = ask(f"schedule check {path}")
    assert "proved for 6 ranks" in answer
    for word in ("complete", "ordered", "agreed", "live", "reduced"):
        assert word in answer
    assert json.loads(ask(f"schedule check --json {path}"))["proved"] is True


def test_a_wrong_schedule_exits_with_one(tmp_path: Path, ask: Any, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "wrong.txt"
    path.write_text(ask("schedule show --stages 2").replace("  backward p0 s1 m3\n", "", 1))
    assert main(["schedule", "check", str(path)]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [f"halocline: wrong schedule: {path}: rank 1: backward p0 s1 m3 is missing"]
    assert main(["schedule", "check", str(path), "--json"]) == 1
    assert json.loads(capsys.readouterr().out) == {"proved": False, "fault": "rank 1: backward p0 s1 m3 is missing"}


# -- plan ----------------------------------------------------------------------------------------------------------

GEMS_SPATIAL = "plan show --split-size 5 --num-spatial-parts 4 --spatial-size 1 --times 2 --parts 2 --batch-size 8"


def test_plan_show_counts_processes(ask: Any) -> None:
    answer = json.loads(ask(f"{GEMS_SPATIAL} --image-size 100,201 --json"))
    assert answer["processes"] == 8
    assert answer["effective_batch"] == 16
    assert len(answer["ranks"]) == 8
    assert answer["plan"]["schedule"] == "gems"
    first = answer["ranks"][0]["roles"][0]
    assert first == {
        "pipe": 0,
        "stage": 0,
        "layers": [0, 1],
        "tile": 0,
        "box": [[0, 50], [0, 100]],
        "lane": 0,
        "tensor": 0,
    }
    assert [role["stage"] for role in answer["ranks"][7]["roles"]] == [4, 0]


def test_the_tiles_of_a_stage_cover_the_image_once(ask: Any) -> None:
    answer = json.loads(ask("plan show --split-size 2 --num-spatial-parts 6 --image-size 11,13 --json"))
    boxes = [role["box"] for rank in answer["ranks"] for role in rank["roles"] if role["box"]]
    pixels = [(y, x) for (y0, y1), (x0, x1) in boxes for y in range(y0, y1) for x in range(x0, x1)]
    assert len(boxes) == 6
    assert sorted(pixels) == [(y, x) for y in range(11) for x in range(13)]


def test_messages_and_reductions_are_those_of_the_layout(ask: Any) -> None:
    answer = json.loads(ask("plan show --split-size 2 --num-spatial-parts 4 --json"))
    links = {(m["what"], tuple(map(tuple, m["links"]))) for m in answer["messages"]}
    assert links == {
        ("activation", ((0, 4), (1, 4), (2, 4), (3, 4))),
        ("gradient", ((4, 0), (4, 1), (4, 2), (4, 3))),
    }
    assert answer["reductions"] == [{"stage": 0, "tensor": 0, "ranks": [0, 1, 2, 3]}]


def test_the_table_says_the_same(ask: Any) -> None:
    text = ask(f"{GEMS_SPATIAL} --image-size 100")
    assert text.startswith("8 processes = 4 + 1 + 1 + 1 + 1\n")
    assert "effective batch 16 samples" in text
    assert "tile 3  [50, 100) x [50, 100)" in text
    assert "pipe 0 stage 0 sends activations to stage 1:  0>4  1>4  2>4  3>4" in text
    assert "stage 1 sums its gradients over ranks  3 4" in text
    merak = ask("plan show gpt3 4 32 --pp 4 --dp 2 --tp 2 --partition_method custom:0,8,14,20,26")
    assert merak.startswith("16 processes = 2 replicas x (2 + 2 + 2 + 2)\n")
    assert "layers 8-13" in merak and "Replica r repeats this" in merak


def test_a_plan_is_written_and_shown_again(ask: Any, tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    first = json.loads(ask(f"{GEMS_SPATIAL} --json --out {path}"))
    again = json.loads(ask(f"plan show --plan {path} --json"))
    assert first == again
    boxed = json.loads(ask(f"plan show --plan {path} --image-size 64 --json"))
    assert boxed["ranks"][3]["roles"][0]["box"] == [[32, 64], [32, 64]]


def test_layers_are_shared_among_stages(ask: Any) -> None:
    answer = json.loads(ask("plan show --pp 4 --layers 38 --balance 9,10,10,9 --json"))
    assert [stage["layers"] for stage in answer["plan"]["stages"]] == [[0, 9], [9, 19], [19, 29], [29, 38]]
