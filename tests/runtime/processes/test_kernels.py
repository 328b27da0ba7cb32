"""Which GPUs a torch has kernels for, by the lists of wheels that exist."""

from __future__ import annotations

import pytest
import torch

from halocline.runtime.processes.kernels import has_kernels, refusal

WHEELS = {
    "2.7.1+cu126": "sm_50 sm_60 sm_70 sm_75 sm_80 sm_86 sm_90",
    "2.10.0+cu128": "sm_70 sm_75 sm_80 sm_86 sm_90 sm_100 sm_120",
    "2.11.0+cu130": "sm_75 sm_80 sm_86 sm_90 sm_100 sm_120",
    "2.11.0+cu130 with PTX": "sm_75 sm_80 sm_86 sm_90 sm_100 sm_120 compute_120",
    "rocm": "gfx900 gfx906 gfx908 gfx90a gfx942 gfx1100",
}
V100, TURING, A100, L4, H100, B200, B300, RTX_5090, NEXT = (
    (7, 0), (7, 5), (8, 0), (8, 9), (9, 0), (10, 0), (10, 3), (12, 0), (13, 0)
)  # fmt: skip


@pytest.mark.parametrize(
    ("wheel", "runs", "refused"),
    [
        ("2.7.1+cu126", [V100, TURING, A100, L4, H100], [B200, RTX_5090]),
        ("2.10.0+cu128", [V100, TURING, A100, L4, H100, B200, B300, RTX_5090], [(6, 1), NEXT]),
        ("2.11.0+cu130", [TURING, A100, L4, H100, B200, RTX_5090], [(6, 1), V100, NEXT]),
        ("2.11.0+cu130 with PTX", [A100, RTX_5090, (12, 1), NEXT], [V100, (11, 0)]),
        ("rocm", [(9, 0), (9, 4), (11, 0)], []),
    ],
)
def test_the_gpus_of_a_wheel(wheel: str, runs: list[tuple[int, int]], refused: list[tuple[int, int]]) -> None:
    for capability in runs:
        assert has_kernels(capability, WHEELS[wheel].split()), capability
    for capability in refused:
        assert not has_kernels(capability, WHEELS[wheel].split()), capability


@pytest.mark.parametrize(
    ("architecture", "runs", "refused"),
    [
        ("sm_86", [(8, 6), (8, 9)], [(8, 0), (9, 0)]),
        ("sm_90a", [(9, 0)], [(8, 9), (10, 0)]),
        ("sm_100a", [(10, 0)], [(10, 3)]),
        ("sm_100f", [(10, 0), (10, 3)], [(9, 0), (11, 0)]),
        ("compute_80", [(8, 0), (8, 9), (12, 0)], [(7, 5)]),
        ("compute_90a", [(9, 0)], [(10, 0)]),
        ("compute_100f", [(10, 3)], [(12, 0)]),
    ],
)
def test_what_one_architecture_runs_on(
    architecture: str, runs: list[tuple[int, int]], refused: list[tuple[int, int]]
) -> None:
    assert all(has_kernels(capability, [architecture]) for capability in runs)
    assert not any(has_kernels(capability, [architecture]) for capability in refused)


def test_the_refusal_is_one_line_with_a_way_out() -> None:
    built = WHEELS["2.11.0+cu130"].split()
    assert refusal("Tesla V100-SXM2-16GB", V100, built, "2.11.0+cu130") == (
        "Tesla V100-SXM2-16GB has capability 7.0, and torch 2.11.0+cu130 has kernels for sm_75, sm_80, sm_86, sm_90, "
        "sm_100, sm_120: install a wheel for CUDA 12.6 of torch 2.10 to 2.14 (README.md, GPUs and versions), or use "
        "device cpu"
    )
    assert "install a newer torch (" in refusal("a GPU to come", NEXT, built, "2.11.0+cu130")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_this_gpu_runs_what_this_torch_has() -> None:
    """What is said of the GPU here is what an operator does on it."""
    runs = has_kernels(torch.cuda.get_device_capability(), torch.cuda.get_arch_list())
    try:
        assert torch.ones(2, device="cuda").sum().item() == 2
    except RuntimeError:
        assert not runs
    else:
        assert runs
