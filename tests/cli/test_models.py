"""`halocline models` as a user calls it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from halocline.cli import main
from halocline.models.zoo import ZOO


def ask(capsys: pytest.CaptureFixture[str], line: str) -> str:
    code = main(line.split())
    out, err = capsys.readouterr()
    assert code == 0, err
    return out


def test_the_whole_table(capsys: pytest.CaptureFixture[str]) -> None:
    rows: list[dict[str, Any]] = json.loads(ask(capsys, "models --no-activations --json"))
    assert [row["name"] for row in rows] == list(ZOO)
    by_name = {row["name"]: row for row in rows}
    assert by_name["amoebanet-d"]["layers"] == 24 and by_name["amoebanet-d"]["parameters"] == 312_433_690
    assert by_name["wide-resnet101_8"]["layers"] == 34
    assert by_name["unet"]["task"] == "segmentation"
    assert by_name["resnet50"]["options"]["depth"] == 50
    assert all(row["activation_bytes"] is None for row in rows)
    assert all(bool(row["image"]) != bool(row["sequence"]) for row in rows)


def test_one_model_layer_by_layer(capsys: pytest.CaptureFixture[str]) -> None:
    line = "models amoebanet-d --num-layers 6 --num-filters 64 --num-classes 7 --image-size 8192,4096"
    (found,) = json.loads(ask(capsys, f"{line} --json"))
    assert (found["name"], found["layers"], found["image"]) == ("amoebanet-d", 12, [8192, 4096])
    rows = found["per_layer"]
    assert [row["layer"] for row in rows] == [str(n) for n in range(12)]
    assert sum(row["parameters"] for row in rows) == found["parameters"]
    assert sum(row["activation_bytes"] for row in rows) == found["activation_bytes"] > 2**30
    assert found["options"]["num_classes"] == found["classes"] == 7
    drawn = ask(capsys, line)
    assert f"{found['parameters']:,} parameters" in drawn and "8192 x 4096" in drawn
    assert f"{rows[3]['parameters']:,}" in drawn


def test_any_option_of_a_model(capsys: pytest.CaptureFixture[str]) -> None:
    (found,) = json.loads(ask(capsys, "models unet --model-options depth=2,base_width=8,norm=group --json"))
    assert found["layers"] == 6
    assert found["options"]["norm"] == "group" and found["options"]["base_width"] == 8


def test_a_depth_that_is_not_in_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    (found,) = json.loads(ask(capsys, "models resnet-v2-29 --json"))
    assert (found["name"], found["layers"]) == ("resnet-v2-29", 11)


def test_the_commands_of_the_document(capsys: pytest.CaptureFixture[str]) -> None:
    text = (Path(__file__).parents[2] / "docs" / "models.md").read_text(encoding="utf-8")
    lines = re.findall(r"^    halocline (models .*)$", text, re.MULTILINE)
    assert len(lines) == 2
    for line in lines:
        ask(capsys, line)


def test_a_users_own_model(tmp_path: Path) -> None:
    (tmp_path / "my_model.py").write_text(
        "from torch import nn\n\n\ndef make(width=4):\n    return nn.Sequential(nn.Conv2d(3, width, 1), nn.ReLU())\n"
    )
    code = "import sys; from halocline.cli import main; sys.exit(main())"
    words = ["models", "my_model:make", "--model-options", "width=5", "--image-size", "8", "--json"]
    done = subprocess.run(
        [sys.executable, "-c", code, *words], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    (found,) = json.loads(done.stdout)
    assert (found["layers"], found["parameters"]) == (2, 20)


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        ("models amoebanet", "did you mean amoebanet-d?"),
        ("models resnet-v2-100", "use 92 or 101"),
        ("models unet --num-layers 3", "unet has no option num_layers"),
        ("models unet --model-options depth", "no name=value"),
        ("models unet --model-options depht=3", "did you mean depth?"),
        ("models unet --image-size 0", "use 1 or more"),
        ("models amoebanet-d --num-layers 4", "use 3 or 6"),
        ("models --imagesize 3", "did you mean --image-size?"),
    ],
)
def test_bad_input_is_answered_in_one_line(line: str, answer: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(line.split()) == 2
    err = capsys.readouterr().err
    assert answer in err
    assert err.strip().count("\n") == 0
