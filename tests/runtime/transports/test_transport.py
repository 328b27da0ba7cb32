"""Transports: what arrives is what was sent, plans stay exact, and the strict one refuses what NCCL would."""

from __future__ import annotations

import pytest
import torch

from halocline.runtime.transports.transport import choose, make
from harness.checks import transports as check
from harness.ranks import close, on_processes

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


@pytest.mark.parametrize("transport", ["strict", "ipc", "gloo"])
def test_plans_are_exact_over(transport: str) -> None:
    for found in on_processes(4, check.exactness, transport):
        assert max(found.values()) < 1e-10, found


@pytest.mark.parametrize("transport", ["ipc", "gloo"])
def test_many_messages_arrive_whole(transport: str) -> None:
    assert all(on_processes(4, check.storm, transport))


def test_ipc_leaves_nothing_behind() -> None:
    assert on_processes(4, check.left_behind) == [[]] * 4


def test_sums_and_gathers_of_tiles() -> None:
    assert on_processes(4, check.gathered) == [[6.0, 0.0, 1.0, 2.0, 3.0]] * 4


def test_strict_refuses_another_order_and_names_both_sides() -> None:
    message = on_processes(3, check.wrong_order)[1]
    assert "rank 0 sends [a, 4 x uint8] and rank 1 expects [b, 4 x uint8]" in message


def test_strict_refuses_another_size() -> None:
    assert "rank 0 sends [a, 4 x uint8] and rank 1 expects [a, 5 x uint8]" in on_processes(3, check.wrong_size)[1]


def test_strict_refuses_strided_tensors() -> None:
    assert "not contiguous: shape (4, 4), strides (1, 4)" in on_processes(3, check.not_contiguous)[2]


def test_strict_refuses_another_order_of_collectives() -> None:
    first, second, _ = on_processes(3, check.wrong_collectives)
    assert "rank 0 starts [all_reduce over ranks [0, 1]" in first and "and rank 1 starts [all_reduce over" in first
    assert "rank 1 starts [all_reduce over ranks [0, 1, 2]" in second


def test_strict_refuses_sums_of_different_sizes() -> None:
    found = on_processes(3, check.wrong_sums)
    assert "4 x float32" in found[0] and "3 x float32" in found[0]


def test_strict_hangs_where_both_send_first() -> None:
    said = on_processes(3, check.wrong_direction)
    close(3)  # an expired wait closes gloo's connections
    assert said[:2] == ["never came: RuntimeError"] * 2


@pytest.mark.parametrize("transport", ["ipc", "gloo"])
def test_a_late_message_is_told(transport: str) -> None:
    said = on_processes(2, check.late, transport)[1]
    if transport == "gloo":
        close(2)
    assert said == (
        "PeerLost: rank 1 waits in forward p0 s1 m0 for activation p0 s0 m0 from rank 0: nothing came for 1.5 s"
    )


def test_the_choice() -> None:
    assert choose(CPU, 1, 4, 4) == "gloo"
    assert choose(GPU, 1, 8, 16) in ("nccl", "staged")  # staged where torch was built without NCCL
    assert choose(GPU, 2, 4, 4) == "ipc"
    assert choose(GPU, 2, 4, 8) == "staged"


def test_a_transport_for_the_wrong_device_is_refused() -> None:
    with pytest.raises(ValueError, match="nccl moves GPU tensors and the device is cpu"):
        make("nccl", 0, CPU)
    with pytest.raises(ValueError, match="gloo moves CPU tensors and the device is cuda:0"):
        make("gloo", 0, GPU)
    with pytest.raises(ValueError, match="'carrier' is unknown: use auto or one of gloo, nccl"):
        make("carrier", 0, CPU)
