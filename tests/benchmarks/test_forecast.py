"""The benchmark of forecasts, typed on this machine with small models."""

from pathlib import Path

from harness.processes import program

COMMAND = Path(__file__).parents[2] / "benchmarks" / "forecast.py"


def test_every_kind_of_layer_is_predicted_and_measured(tmp_path: Path) -> None:
    models = ("resnet-v1-8:2:float32", "resnet-v1-8:1:bf16:64")
    done = program(COMMAND, "--device", "a40", "--repeats", "1", "--channels-last", *models, directory=tmp_path)
    assert done.code == 0, done.err
    assert "predicted for a40, measured on this CPU" in done.out
    rows = [line.split() for line in done.out.splitlines() if "/" in line]
    assert [row[0] for row in rows].count("all") == 2
    assert all(float(row[-1]) > 0 for row in rows if row[0] == "all")
