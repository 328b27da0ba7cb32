"""The U-Net and its loss: sizes, any image size, and samples that count alike."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from halocline.models.count import count
from halocline.models.losses import SegmentationLoss
from halocline.models.model import SEGMENTATION, make
from harness.image_models import net, small


def test_size() -> None:
    model = make("unet")
    assert (len(model.layers), model.task, model.classes) == (10, SEGMENTATION, 2)
    assert count(model, activations=False).parameters == 31_037_698


@pytest.mark.parametrize(
    ("norm", "rise", "depth", "size"),
    [
        ("batch", "transposed", 1, (7, 4)),
        ("batch", "bilinear", 2, (13, 18)),
        ("instance", "transposed", 2, (18, 13)),
        ("group", "bilinear", 3, (17, 9)),
        ("none", "transposed", 3, (9, 17)),
    ],
)
def test_scores_for_every_pixel(norm: str, rise: str, depth: int, size: tuple[int, int]) -> None:
    model = net(small("unet", norm=norm, rise=rise, depth=depth))
    assert len(model) == 2 * depth + 2
    scores = model(torch.randn(2, 3, *size, dtype=torch.float64))
    assert scores.shape == (2, 5, *size)
    scores.square().sum().backward()
    assert all(p.grad is not None for p in model.parameters())


@pytest.mark.parametrize(
    ("options", "fix"),
    [
        ({"depth": 0}, "use 1 or more"),
        ({"norm": "layer"}, "batch, instance, group, none"),
        ({"rise": "up"}, "bilinear"),
    ],
)
def test_bad_options(options: dict[str, object], fix: str) -> None:
    with pytest.raises(ValueError, match=fix):
        make("unet", **options)


def scores_and_classes(samples: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(samples, 3, 6, 5, generator=generator, dtype=torch.float64)
    return scores, torch.randint(0, 3, (samples, 6, 5), generator=generator)


def test_where_every_pixel_is_known_the_loss_is_cross_entropy() -> None:
    scores, classes = scores_and_classes()
    torch.testing.assert_close(SegmentationLoss()(scores, classes), F.cross_entropy(scores, classes))


def test_samples_count_alike_however_many_pixels_are_known() -> None:
    scores, classes = scores_and_classes()
    classes[0, :5] = classes[1, 2:4] = classes[3] = -100
    for loss in (SegmentationLoss(), SegmentationLoss(dice=0.5)):
        whole = loss(scores, classes)
        halves = [loss(scores[a:b], classes[a:b]) * (b - a) / 4 for a, b in ((0, 1), (1, 4))]
        torch.testing.assert_close(whole, sum(halves))
    plain = [F.cross_entropy(scores[n : n + 1], classes[n : n + 1]) for n in range(3)]
    torch.testing.assert_close(SegmentationLoss()(scores, classes), sum(plain) / 4)


def test_soft_dice() -> None:
    scores, classes = scores_and_classes(1)
    classes[0, 0] = -100
    found = F.softmax(scores[0], 0)[:, 1:]
    terms = []
    for c in range(3):
        there = (classes[0, 1:] == c).double()
        terms.append(1 - (2 * (found[c] * there).sum() + 1) / (found[c].sum() + there.sum() + 1))
    expected = SegmentationLoss()(scores, classes) + 0.7 * sum(terms) / 3
    torch.testing.assert_close(SegmentationLoss(dice=0.7)(scores, classes), expected)
    perfect = 100 * F.one_hot(classes.clamp(min=0), 3).movedim(-1, 1).double()
    assert SegmentationLoss(dice=1.0)(perfect, classes) < 1e-6
