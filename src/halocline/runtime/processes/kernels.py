"""Which GPUs the installed torch has kernels for. Without any, torch only warns, and fails at its first operator."""

from __future__ import annotations

import re
from collections.abc import Sequence

import torch


def has_kernels(capability: tuple[int, int], architectures: Sequence[str]) -> bool:
    """Whether a GPU of this capability runs what was built for these architectures, as `torch.cuda.get_arch_list` names
    them. Machine code (sm_80) runs on the same major number from its minor on, what is compiled for the GPU when it
    starts (compute_80) on all newer ones; with a letter, sm_90a runs on 9.0 alone, and sm_100f as sm_100.
    """
    known = [found for name in architectures if (found := re.fullmatch(r"(sm|compute)_(\d+)(\d)([af]?)", name))]
    if not known:  # a torch for other GPUs, which has other names (gfx942)
        return True
    for kind, major, minor, letter in (name.groups() for name in known):
        built = int(major), int(minor)
        if letter == "a":
            runs = capability == built
        elif kind == "compute" and not letter:
            runs = capability >= built
        else:
            runs = capability[0] == built[0] and capability >= built
        if runs:
            return True
    return False


def check_kernels(device: torch.device) -> None:
    """Refuse a GPU that this torch has no kernels for."""
    capability, architectures = torch.cuda.get_device_capability(device), torch.cuda.get_arch_list()
    if not has_kernels(capability, architectures):
        raise ValueError(refusal(torch.cuda.get_device_name(device), capability, architectures, torch.__version__))


def refusal(name: str, capability: tuple[int, int], architectures: Sequence[str], version: str) -> str:
    """What is said of a GPU without kernels."""
    fix = "a wheel for CUDA 12.6 of torch 2.10 to 2.14" if capability < (7, 5) else "a newer torch"
    return (
        f"{name} has capability {capability[0]}.{capability[1]}, and torch {version} has kernels for "
        f"{', '.join(architectures)}: install {fix} (README.md, GPUs and versions), or use device cpu"
    )
