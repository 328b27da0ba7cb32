"""What a dry run says before anything starts: partitions that were balanced by measuring are balanced here, and the
device counts, its links, its memory and its host."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch

from halocline.simulation.speed import DTYPES, KNOWN, DeviceSpeed
from halocline.train import forecast as room
from halocline.train.forecast import Forecast, forecast, speed_of
from halocline.train.settings import RunSettings, Settings

SMALL = {"layers": 4, "hidden": 32, "heads": 2, "vocab": 64, "seq": 16, "batch_size": 8}


def small(**said: Any) -> Forecast:
    return forecast(Settings.of(model="gpt3-small", **{**SMALL, "device": "a100", **said}))


def on(speed: DeviceSpeed, monkeypatch: pytest.MonkeyPatch, **said: Any) -> Forecast:
    """On a device of which everything is known."""
    monkeypatch.setattr(room, "speed_of", lambda run: speed)
    return small(**said)


@pytest.mark.parametrize(
    ("model", "samples", "bounds", "device"),
    [
        ("gpt3-xl", 8, (0, 8, 14, 21, 27), "a40"),
        ("bert-huge-uncased", 8, (0, 8, 14, 20, 26), "a100"),
        ("t5-3b", 4, (0, 16, 33, 53, 74), "a100"),
        ("wide-resnet101_8", 64, (0, 7, 16, 25, 34), "a40"),
    ],
)
def test_partitions_balanced_by_measuring_are_balanced(
    model: str, samples: int, bounds: tuple[int, ...], device: str
) -> None:
    """Perseus's authors chose them on A100 and A40 GPUs, so that the longest stage is as short as it can be."""
    sizes = ",".join(str(stop - start) for start, stop in pairwise(bounds))
    found = forecast(Settings.of(model=model, balance=sizes, microbatches=8, batch_size=8 * samples, device=device))
    times = [sum(stage.seconds) for stage in found.stages if stage.seconds is not None]
    assert len(times) == 4 and max(times) <= 1.3 * sum(times) / 4
    assert found.bubble < 0.45  # of which 3 / 11 is filling and draining


def test_operations_alone_do_not_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that only computes finds the head long; a slow host makes stages last as their operators are many."""
    computing = DeviceSpeed(
        "computes", dict.fromkeys(KNOWN["a100"].compute, 1e6), 1e30, 1e30, launch=0, latency=0, shares={}
    )
    waiting = replace(computing, compute=dict.fromkeys(computing.compute, 1e30), launch=1.0)
    said = {"stages": 2, "microbatches": 4, "vocab": 4096}
    (first, last) = (stage.seconds for stage in on(computing, monkeypatch, **said).stages)
    assert first is not None and last is not None and last[0] > 5 * first[0]
    assert last[1] == pytest.approx(2 * last[0], rel=0.01)
    (first, last) = (stage.seconds for stage in on(waiting, monkeypatch, **said).stages)
    assert first is not None and last is not None and 10 < first[0] < last[0] < 4 * first[0]
    assert all(time == round(time) for time in (*first, *last))


def test_links_are_priced(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = replace(KNOWN["a100"], link=1e3)
    fast = replace(KNOWN["a100"], link=1e15)
    for said in ({"stages": 2, "microbatches": 4}, {"replicas": 2}):
        assert on(slow, monkeypatch, **said).makespan > 10 * on(fast, monkeypatch, **said).makespan


def test_the_optimizer_is_priced(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = replace(KNOWN["a100"], memory=1e6, shares={})
    sgd, adamw = (on(slow, monkeypatch, optimizer=name) for name in ("sgd", "adamw"))
    assert adamw.makespan - sgd.makespan == pytest.approx(2 * 4 * adamw.stages[0].parameters / 1e6)


def test_a_team_shares_the_work() -> None:
    alone = forecast(Settings.of(model="resnet-v1-20", image_size=256, batch_size=8, device="t4", dtype="float64"))
    shared = forecast(
        Settings.of(model="resnet-v1-20", image_size=256, batch_size=8, device="t4", dtype="float64", tiles="2x2")
    )
    (one,), (four,) = alone.stages, shared.stages
    assert one.seconds is not None and four.seconds is not None
    assert one.flops == four.flops and one.seconds[0] == pytest.approx(4 * four.seconds[0])


def test_one_sample_of_one_pixel_is_priced_like_half_of_two() -> None:
    """BatchNorm refuses a single value a channel when it trains; a dry run must not."""
    small = {"image_size": 32, "device": "a100", "num_layers": 3, "num_filters": 32}
    one, two = (forecast(Settings.of(model="amoebanet-d", batch_size=size, **small)) for size in (1, 2))
    assert one.stages[0].flops is not None and two.stages[0].flops == 2 * one.stages[0].flops


# -- the device ------------------------------------------------------------------------------------------------------


def test_a_named_device_need_not_be_here() -> None:
    assert speed_of(RunSettings(device="b200")) is KNOWN["b200"]


def test_this_cpu_is_measured() -> None:
    found = speed_of(RunSettings(device="cpu"))
    assert found.name == "this CPU, measured"
    assert set(found.compute) == set(DTYPES)
    assert all(rate > 1e6 for rate in (*found.compute.values(), found.memory, found.link)) and 0 < found.launch < 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here")
def test_without_a_device_the_assumption_is_said() -> None:
    assert speed_of(RunSettings()).name == "a100 (assumed: --device names another)"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_this_gpu_is_measured() -> None:
    found = speed_of(RunSettings())
    assert found.name == f"{torch.cuda.get_device_name()}, measured"
    assert found.compute["bf16"] > 1e12 and found.memory > 1e10


def test_a_device_to_price_is_none_to_train_on() -> None:
    with pytest.raises(ValueError, match="device = 'a40' is a GPU to price a run on: add --dry-run, or train on cuda"):
        _ = RunSettings(device="a40").where
    assert (RunSettings(device="cpu").where, RunSettings().where) == ("cpu", None)
