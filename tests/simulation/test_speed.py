"""The roofline of a device: the slower of computing and moving bytes, and never less than the host's handing over."""

import pytest

from halocline.simulation.speed import KNOWN, DeviceSpeed

DEVICE = DeviceSpeed(
    "one", {"bf16": 100.0, "tf32": 50.0, "float32": 10.0}, memory=20.0, link=1.0, launch=0.0, shares={}
)


@pytest.mark.parametrize(("flops", "moved", "seconds"), [(100, 0, 1.0), (0, 20, 1.0), (100, 40, 2.0), (300, 40, 3.0)])
def test_the_slower_of_the_two(flops: float, moved: float, seconds: float) -> None:
    assert DEVICE.seconds([("product", flops, moved)], "bf16") == seconds


def test_operators_one_after_the_other_shared_by_ranks() -> None:
    both = [("product", 100.0, 0.0), ("other", 0.0, 20.0)]
    assert DEVICE.seconds(both, "bf16") == 2.0
    assert DEVICE.seconds(both, "bf16", ranks=4) == 0.5


def test_the_host_may_be_the_slower() -> None:
    slow = DeviceSpeed("slow host", DEVICE.compute, 20.0, 1.0, launch=3.0)
    assert slow.seconds([("product", 1.0, 1.0)] * 2, "bf16", ranks=100) == 6.0


def test_convolutions_in_float32_run_in_tf32() -> None:
    assert DEVICE.seconds([("product", 100, 0)], "float32") == 10.0
    assert DEVICE.seconds([("convolution", 100, 0)], "float32") == 2.0


def test_a_kind_reaches_a_share() -> None:
    halved = DeviceSpeed("halved", DEVICE.compute, 20.0, 1.0, launch=0.0, shares={"norm": 0.5})
    assert halved.seconds([("norm", 0, 20)], "bf16") == 2.0
    assert halved.channels_last().seconds([("norm", 0, 20)], "bf16") == 1.0


def test_known_devices_are_in_order() -> None:
    """No card is faster in a wider number, and newer ones of a line are not slower."""
    for name, speed in KNOWN.items():
        assert name == speed.name
        assert speed.compute["bf16"] >= speed.compute["tf32"] >= speed.compute["float32"] >= speed.compute["float64"]
    for older, newer in (("v100", "a100"), ("a100", "h100"), ("h100", "h200"), ("a40", "l40s")):
        old, new = KNOWN[older], KNOWN[newer]
        assert old.memory <= new.memory and old.compute["bf16"] <= new.compute["bf16"]
