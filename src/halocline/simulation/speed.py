"""How fast a device is: `KNOWN` GPUs by name, and how long an operator takes on one. It knows no model and no schedule.

An operator computes and moves bytes at the same time, so the slower of the two is its time (the roofline). The host
hands operators over one by one: where it needs longer than the device works on them, its time is theirs.

The peaks are those of the makers' data sheets, without sparsity. What of them is reached in training was measured on an
H200 by benchmarks/forecast.py and is taken for all.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

COMPUTE, MEMORY = 0.75, 0.8
"""The share of a peak that large matrix products and large copies reach."""
SHARES = {"unaligned product": 0.2, "convolution": 0.5, "attention": 0.4, "norm": 0.15, "other": 0.6}
"""What kinds of operators reach of that. Norms over a batch are slow because a channel has one block of threads, unless
images lie channels last."""
LAUNCH = 3e-5
"""Seconds of the host for one operator in a module, under autograd."""
LATENCY = 2e-5
"""Seconds from the last byte of a message to whoever waits for it."""
DTYPES = ("bf16", "tf32", "float32", "float64")


@dataclass(frozen=True)
class DeviceSpeed:
    """What a device does in a second."""

    name: str
    compute: Mapping[str, float]
    """Operations of matrix products, by dtype; a multiplication and an addition are two. tf32 is what PyTorch's
    convolutions do in float32, where nobody forbids it."""
    memory: float
    """Bytes read or written."""
    link: float
    """Bytes sent to another such device."""
    launch: float = LAUNCH
    latency: float = LATENCY
    shares: Mapping[str, float] = field(default_factory=lambda: SHARES)

    def channels_last(self) -> DeviceSpeed:
        """Where images lie so in memory."""
        return replace(self, shares={**self.shares, "norm": 1.0})

    def seconds(self, operators: Collection[tuple[str, float, float]], dtype: str, ranks: float = 1) -> float:
        """Of operators one after the other, each (kind, operations, bytes) and shared by so many ranks alike."""
        busy = sum(self._busy(dtype, *operator) for operator in operators)
        return max(len(operators) * self.launch, busy / ranks)

    def _busy(self, dtype: str, kind: str, flops: float, moved: float) -> float:
        if kind == "convolution" and dtype == "float32":
            dtype = "tf32"
        return max(flops / self.compute[dtype], moved / self.memory) / self.shares.get(kind, 1.0)


def _gpu(name: str, bf16: float, float32: float, float64: float, memory: float, link: float) -> DeviceSpeed:
    """From peaks, in TFLOP/s and GB/s; a link's in one direction."""
    tf32 = max(bf16 / 2, float32)
    compute = {dtype: peak * 1e12 * COMPUTE for dtype, peak in zip(DTYPES, (bf16, tf32, float32, float64))}
    return DeviceSpeed(name, compute, memory * 1e9 * MEMORY, link * 1e9 * MEMORY)


# V100 and T4 have no bf16 of their own: it runs as fast as float32. A link is NVLink where the card has it, else PCIe.
KNOWN: Mapping[str, DeviceSpeed] = {
    speed.name: speed
    for speed in (
        _gpu("v100", 15.7, 15.7, 7.8, 900, 150),
        _gpu("t4", 8.1, 8.1, 0.25, 300, 16),
        _gpu("a100-40gb", 312, 19.5, 19.5, 1555, 300),
        _gpu("a100", 312, 19.5, 19.5, 2039, 300),
        _gpu("a40", 149.7, 37.4, 0.58, 696, 56),
        _gpu("a6000", 154.8, 38.7, 0.6, 768, 56),
        _gpu("a10", 125, 31.2, 0.49, 600, 32),
        _gpu("l4", 121, 30.3, 0.47, 300, 32),
        _gpu("l40s", 362, 91.6, 1.4, 864, 32),
        _gpu("rtx3090", 71, 35.6, 0.56, 936, 32),
        _gpu("rtx4090", 165, 82.6, 1.3, 1008, 32),
        _gpu("h100-pcie", 756, 51, 51, 2000, 64),
        _gpu("h100", 989, 67, 67, 3350, 450),
        _gpu("h200", 989, 67, 67, 4800, 450),
        _gpu("b200", 2250, 75, 37, 8000, 900),
    )
}
"""By the name that --device takes."""
ASSUMED = "a100"
"""Where no device is named and none is here."""
