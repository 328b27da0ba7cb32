"""One training step of an ordinary model on an image cut into 2 x 2 tiles, compared with the same step on one device.

torchrun --nproc-per-node 4 examples/tiles.py
"""

from __future__ import annotations

import copy

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

from halocline import tiling


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 7, stride=2, padding=3, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(3, 2, 1),
        nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10),
    ).double()  # fmt: skip
    one_device = copy.deepcopy(model)
    image, target = torch.randn(2, 3, 97, 91, dtype=torch.float64), torch.tensor([1, 2])

    x = tiling.tile(image, grid=(2, 2))  # this rank's quarter
    loss = F.cross_entropy(model(x), target)  # halos are exchanged where they are needed
    loss.backward()  # the one-device gradient of every parameter, on every rank

    expected = F.cross_entropy(one_device(image), target)
    expected.backward()
    worst = (loss - expected).abs().item()
    for mine, theirs in zip(model.parameters(), one_device.parameters()):
        assert mine.grad is not None and theirs.grad is not None
        worst = max(worst, (mine.grad - theirs.grad).abs().max().item())
    for mine, theirs in zip(model.buffers(), one_device.buffers()):
        worst = max(worst, (mine - theirs).abs().max().item())
    assert worst < 1e-12, worst

    sent = tiling.traffic()
    print(
        f"rank {dist.get_rank()}: {x.local.shape[2]} x {x.local.shape[3]} pixels, loss {loss.item():.6f}, "
        f"{sent.exchanges} exchanges, {sent.bytes} bytes sent, largest difference from one device {worst:.1e}"
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
