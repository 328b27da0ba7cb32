"""Losses as libraries of segmentation write them, with plain targets: equal to one device, gradients included."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from harness.ranks import assert_exact, image

SHAPE = (2, 4, 7, 9)
TARGET = (image((2, 7, 9), 3).abs() * 7).long() % 4
IGNORED = TARGET.clone()
IGNORED[:, :2, 3:5] = 255
HOT = F.one_hot(TARGET, 4).permute(0, 3, 1, 2).double()


def dice(x: Tensor) -> Tensor:
    """One-hot classes scattered into a plain tensor, without the background."""
    hot = torch.zeros(SHAPE, dtype=x.dtype, device=x.device).scatter_(dim=1, index=TARGET.unsqueeze(1), value=1)[:, 1:]
    p = torch.softmax(x, 1)[:, 1:]
    both = torch.sum(hot * p, dim=[2, 3])
    return torch.mean(1 - (2 * both + 1e-5) / (torch.sum(hot, dim=[2, 3]) + torch.sum(p, dim=[2, 3]) + 1e-5))


def dice_of_flat_images(x: Tensor) -> Tensor:
    marked = IGNORED.view(2, -1) != 255
    p = x.log_softmax(dim=1).exp().view(2, 4, -1) * marked.unsqueeze(1)
    hot = F.one_hot(IGNORED.view(2, -1) * marked, 4).permute(0, 2, 1) * marked.unsqueeze(1)
    return 1 - (2 * (p * hot).sum((0, 2)) / (p + hot).sum((0, 2)).clamp_min(1e-7)).mean()


def generalized_dice(x: Tensor) -> Tensor:
    p, weight = torch.softmax(x, 1), torch.reciprocal(HOT.sum((2, 3)).square())
    for sample in weight:
        endless = torch.isinf(sample)
        sample[endless] = 0.0
        sample[endless] = torch.max(sample)
    return (1 - 2 * ((HOT * p).sum((2, 3)) * weight).sum(1) / ((HOT + p).sum((2, 3)) * weight).sum(1)).mean()


def focal_without_ignored(x: Tensor) -> Tensor:
    losses = []
    kept = IGNORED != 255
    for c in range(4):
        wanted, logits = (IGNORED == c).long()[kept], x[:, c, ...][kept]
        per_pixel = F.binary_cross_entropy_with_logits(logits, wanted.type(logits.type()), reduction="none")
        losses.append(((1 - torch.exp(-per_pixel)).pow(2) * per_pixel).mean())
    return torch.stack(losses).sum()


def lovasz(x: Tensor) -> Tensor:
    """Sorts the errors of all pixels, class by class."""
    kept = IGNORED.view(-1) != 255
    p, wanted = x.softmax(1).permute(0, 2, 3, 1).reshape(-1, 4)[kept], IGNORED.view(-1)[kept]
    losses = []
    for c in range(4):
        own = (wanted == c).type_as(p)
        errors, order = torch.sort((own - p[:, c]).abs(), 0, descending=True)
        own = own[order]
        jaccard = 1 - (own.sum() - own.cumsum(0)) / (own.sum() + (1 - own).cumsum(0))
        losses.append(torch.dot(errors, torch.cat([jaccard[:1], jaccard[1:] - jaccard[:-1]])))
    return torch.stack(losses).mean()


def soft_cross_entropy(x: Tensor) -> Tensor:
    logs, target = F.log_softmax(x, 1), IGNORED.unsqueeze(1)
    padding = target.eq(255)
    wrong = -logs.gather(dim=1, index=target.masked_fill(padding, 0))
    wrong.masked_fill_(padding, 0.0)
    smooth = (-logs.sum(dim=1, keepdim=True)).masked_fill(padding, 0.0)
    return 0.9 * wrong.mean() + 0.1 / 4 * smooth.mean()


def label_smoothing(x: Tensor) -> Tensor:
    with torch.no_grad():
        target = torch.zeros_like(x)
        target.fill_(0.1 / 3)
        target.scatter_(1, TARGET.data.unsqueeze(1), 0.9)
    return torch.mean(torch.sum(-target * F.log_softmax(x, 1), dim=1))


def hardest_pixels(x: Tensor) -> Tensor:
    losses = F.cross_entropy(x, IGNORED, ignore_index=255, reduction="none")
    kept = IGNORED != 255
    p = x.softmax(1).gather(1, IGNORED.masked_fill(~kept, 0).unsqueeze(1)).squeeze(1)
    p, order = p[kept].sort()
    return losses[kept][order][p < p[40].clamp(min=0.2)].mean() + losses.view(-1).topk(9)[0].sum()


def pixels_above_the_mean(x: Tensor) -> Tensor:
    losses = F.cross_entropy(x, TARGET, reduction="none")
    return losses[losses > losses.mean()].mean() + x[x > torch.quantile(x.detach(), 0.5)].mean()


def cross_entropy_by_index(x: Tensor) -> Tensor:
    logs = x.log_softmax(1)
    b, h, w = torch.arange(2)[:, None, None], torch.arange(7)[None, :, None], torch.arange(9)[None, None]
    some = torch.where(TARGET == 1)
    return -logs[b, TARGET, h, w].mean() - logs[some[0], :, some[1], some[2]].square().mean()


def pixels_of_classes(x: Tensor) -> Tensor:
    kept = IGNORED != 255
    means = [x[:, 0][TARGET == c].var() for c in torch.unique(TARGET)]
    return torch.stack(means).sum() + F.cross_entropy(x.permute(0, 2, 3, 1)[kept], IGNORED[kept])


def pieces_of_a_spline(x: Tensor) -> Tensor:
    """Values written under masks, as Parzen windows of mutual information are."""
    far, out = x.abs(), torch.zeros_like(x)
    near, middle = far < 1, (far >= 1) & (far < 2)
    out[near] = (4 - 6 * far[near] ** 2 + 3 * far[near] ** 3) / 6
    out[middle] = (2 - far[middle]) ** 3 / 6
    return out.mean()


def straight_through(x: Tensor) -> Tensor:
    y = (x + image(SHAPE, 6)).softmax(1)
    hard = torch.zeros_like(x).scatter_(1, y.max(1, keepdim=True)[1], 1.0)
    return ((hard - y.detach() + y) * x).mean()


@pytest.mark.parametrize(
    "loss",
    [
        dice,
        dice_of_flat_images,
        generalized_dice,
        focal_without_ignored,
        lovasz,
        soft_cross_entropy,
        label_smoothing,
        hardest_pixels,
        pixels_above_the_mean,
        cross_entropy_by_index,
        pixels_of_classes,
        pieces_of_a_spline,
        straight_through,
    ],
)
def test_a_loss_with_a_plain_target(loss: Callable[[Tensor], Tensor]) -> None:
    assert_exact(loss, SHAPE, cuts=[[0, 3, 7], [0, 2, 9]], tiled=False)
    assert_exact(loss, SHAPE, cuts=[[0, 7], [0, 4, 9]], margin=1, tiled=False)
