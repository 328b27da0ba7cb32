"""Which device a dry run is priced on: the one that is named, else the one that is here, else one that is assumed."""

import pytest
import torch

from halocline.simulation.speed import DTYPES, KNOWN
from halocline.train.device_speed import speed_of
from halocline.train.settings import RunSettings


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
