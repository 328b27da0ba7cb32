"""Losses of tiles against dense targets, tiled or whole, equal one device's and are the same number on every rank."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from halocline import tiling
from halocline.tiling import TileTensor, UntiledOperation
from harness.ranks import assert_close, assert_exact, image, on_threads

SIZES = {1: (11,), 2: (7, 9), 3: (4, 5, 3)}
CUTS = {1: [[0, 2, 11]], 2: [[0, 2, 7], [0, 1, 9]], 3: [[0, 1, 4], [0, 5], [0, 2, 3]]}


def classes(size: tuple[int, ...], number: int = 4, ignored: bool = True) -> Tensor:
    """A class per pixel, some of them ignored (-100)."""
    values = (image((2, *size), salt=5).abs() * 1e3).long() % (number + ignored)
    return torch.where(values == number, -100, values)


def against(target: Tensor, loss: Callable[..., Tensor], tile_the_target: bool) -> Callable[[Tensor], Tensor]:
    """The loss as a function of the image, whose target is cut as the image is, where that is a tile."""

    def function(x: Tensor) -> Tensor:
        if tile_the_target and isinstance(x, TileTensor):
            return loss(x, tiling.tile(target, group=x.spec.exchanger, cuts=x.spec.cuts))
        return loss(x, target)

    return function


@settings(max_examples=80, deadline=None)
@given(
    st.sampled_from([1, 2, 3]),
    st.sampled_from(["mean", "sum", "none"]),
    st.booleans(),
    st.sampled_from([0.0, 0.2]),
    st.sampled_from(["classes", "probabilities", "log"]),
    st.booleans(),
    st.sampled_from([0, 1]),
)
def test_cross_entropy(
    dims: int, reduction: str, weighted: bool, smoothing: float, kind: str, tiled: bool, margin: int
) -> None:
    weight = torch.tensor([0.5, 2.0, 0.0, 1.5], dtype=torch.float64) if weighted else None
    size = SIZES[dims]
    target = image((2, 4, *size), salt=6).softmax(1) if kind == "probabilities" else classes(size)

    def loss(x: Tensor, t: Tensor) -> Tensor:
        if kind == "log":
            return F.nll_loss(F.log_softmax(x, 1), t, weight, reduction=reduction)
        return F.cross_entropy(x, t, weight, reduction=reduction, label_smoothing=smoothing)

    assert_exact(against(target, loss, tiled), (2, 4, *size), cuts=CUTS[dims], margin=margin, tiled=reduction == "none")


def test_another_ignored_class_and_the_module() -> None:
    criterion = nn.CrossEntropyLoss(torch.arange(4.0, dtype=torch.float64), ignore_index=2)
    assert_exact(against(classes(SIZES[2], ignored=False), criterion, True), (2, 4, 7, 9), grid=(2, 2), tiled=False)


def test_all_pixels_of_a_rank_ignored() -> None:
    target = classes(SIZES[2])
    target[..., :5] = -100
    assert_exact(against(target, F.cross_entropy, True), (2, 4, 7, 9), cuts=[[0, 7], [0, 4, 9]])


PIXELWISE: dict[str, Callable[..., Tensor]] = {
    "mse": F.mse_loss,
    "l1": F.l1_loss,
    "smooth l1": lambda x, t, **k: F.smooth_l1_loss(x, t, beta=0.5, **k),
    "huber": lambda x, t, **k: F.huber_loss(x, t, delta=0.7, **k),
    "kl": lambda x, t, **k: F.kl_div(x, t, log_target=True, **k),
    "bce": lambda x, t, **k: F.binary_cross_entropy(x.sigmoid(), t.sigmoid(), **k),
    "bce with logits": lambda x, t, **k: F.binary_cross_entropy_with_logits(
        x, t.sigmoid(), weight=image((9,)).exp(), pos_weight=image((3, 1, 1)).exp(), **k
    ),
    "soft margin": lambda x, t, **k: F.soft_margin_loss(x, t.detach().sign(), **k),
    "hinge": lambda x, t, **k: F.hinge_embedding_loss(x, t.sign(), **k),
    "poisson": lambda x, t, **k: F.poisson_nll_loss(x, t.abs(), full=True, **k),
    "gaussian": lambda x, t, **k: F.gaussian_nll_loss(x, t, x.exp(), full=True, **k),
    "gaussian, a variance per row": lambda x, t, **k: F.gaussian_nll_loss(x, t, x[..., :1].exp(), **k),
    "gaussian, clamped": lambda x, t, **k: F.gaussian_nll_loss(x, t, t.exp(), eps=0.7, **k),
}


@pytest.mark.filterwarnings("ignore:reduction. 'mean' divides the total loss")
@pytest.mark.parametrize("margin", [0, 1])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("name", PIXELWISE)
def test_pixelwise(name: str, reduction: str, margin: int) -> None:
    def loss(x: Tensor, y: Tensor) -> Tensor:
        return PIXELWISE[name](x, y, reduction=reduction)

    assert_exact(loss, [(2, 3, 7, 9)] * 2, cuts=CUTS[2], margin=margin, tiled=reduction == "none")


@pytest.mark.parametrize("tiled", [True, False])
@pytest.mark.parametrize(
    "criterion",
    [
        nn.MSELoss(),
        nn.BCEWithLogitsLoss(pos_weight=torch.full((3, 1, 1), 2.0, dtype=torch.float64)),
        nn.KLDivLoss(reduction="batchmean"),
        nn.SmoothL1Loss(),
    ],
)
def test_modules(criterion: nn.Module, tiled: bool) -> None:
    assert_exact(against(image((2, 3, 7, 9), 7).abs(), criterion, tiled), (2, 3, 7, 9), grid=(2, 2), tiled=False)


def dice(x: Tensor, target: Tensor) -> Tensor:
    p = torch.softmax(x, 1)
    truth = torch.stack([(target == c).to(p.dtype) for c in range(p.shape[1])], 1)
    overlap, total = (p * truth).sum((0, 2, 3)), (p + truth).sum((0, 2, 3))
    return 1 - (2 * overlap / total).mean()


@pytest.mark.parametrize("tiled", [True, False])
def test_dice_written_by_a_user(tiled: bool) -> None:
    assert_exact(against(classes((7, 9), ignored=False), dice, tiled), (2, 4, 7, 9), cuts=CUTS[2], tiled=False)


def test_ranks_without_pixels() -> None:
    target = classes((2, 2), 2)

    def function(x: Tensor) -> Any:
        small = F.max_pool2d(x, 4, 4)
        return F.cross_entropy(small, target), F.mse_loss(small, small * 2), F.cross_entropy(small, small.softmax(1))

    assert_exact(function, (2, 2, 8, 9), grid=(1, 6))


def test_tiles_cut_differently_meet() -> None:
    """The target keeps the image's cuts; strides without padding have moved those of the output."""
    target = classes((5, 5), 3)

    def function(x: Tensor) -> Tensor:
        out = F.conv2d(x, image((3, 3, 3, 3)), stride=2)
        if isinstance(x, TileTensor):
            return F.cross_entropy(out, tiling.tile(target, group=x.spec.exchanger, cuts=[[0, 1, 5], [0, 4, 5]]))
        return F.cross_entropy(out, target)

    assert_exact(function, (2, 3, 12, 12), grid=(2, 2))


def test_low_precision_loss_is_summed_in_float32() -> None:
    x, target = image((2, 4, 32, 32), dtype=torch.bfloat16), classes((32, 32))
    expected = F.cross_entropy(x.double(), target).to(torch.bfloat16)

    def run(exchanger: tiling.Exchanger) -> None:
        loss = F.cross_entropy(tiling.tile(x, (2, 2), exchanger), target)
        assert_close(loss, expected, 2**-7, "loss")

    on_threads(4, run)


def test_classes_of_plain_logits_and_classes_that_are_cut() -> None:
    target = (image((2, 7, 5), 3).abs() * 7).long() % 4
    weight = image((4,), 2).abs()

    def run(x: Tensor, logits: Tensor) -> list[Tensor]:
        turned = x.permute(0, 2, 1, 3)  # which are cut in what is then their classes
        hardest = x.argmax(1)
        return [
            x.sum() * F.cross_entropy(logits, hardest, weight, label_smoothing=0.1),
            F.nll_loss(logits.log_softmax(1), hardest, ignore_index=2),
            F.cross_entropy(turned, target[:, :4], reduction="none"),
        ]

    for margin in (0, 1):
        assert_exact(run, (2, 4, 7, 5), grid=(2, 2), margin=margin, plain=[image((2, 4, 7, 5), 4).requires_grad_()])


def test_refusals() -> None:
    exchanger = tiling.NoCommunication(0, 2)
    x = tiling.tile(torch.zeros(2, 4, 8, 6), (1, 2), exchanger)
    with pytest.raises(ValueError, match=r"\(2, 8, 5\) does not fit .* \(2, 8, 6\) classes"):
        F.cross_entropy(x, torch.zeros(2, 8, 5, dtype=torch.long))
    with pytest.raises(ValueError, match="not a valid value for reduction"):
        F.mse_loss(x, x, reduction="most")
    with pytest.raises(UntiledOperation):
        F.multi_margin_loss(x, torch.zeros(2, dtype=torch.long))


@pytest.mark.parametrize("tiled", [False, True])
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("function", [F.mse_loss, F.l1_loss, F.huber_loss])
def test_weights_of_pixels(function: Callable[..., Tensor], reduction: str, tiled: bool) -> None:
    """A mean is divided by their sum; torch does not tell rules of l1_loss's."""

    def run(x: Tensor, target: Tensor, weight: Tensor) -> Any:
        weight = torch.sigmoid(x if tiled else weight)
        return [function(x, target, reduction=reduction, weight=weight), function(target, x, reduction=reduction)]

    shape = (2, 3, 7, 5)
    plain = [image(shape, 1).requires_grad_(), image(shape, 2).requires_grad_()]
    assert_exact(run, shape, cuts=[[0, 1, 7], [0, 4, 5]], plain=plain if not tiled else [*plain[:1], image(shape, 2)])


@pytest.mark.parametrize("grid", [(2, 2), (1, 3), (3, 1)])
def test_gaussian_nll_loss_with_one_variance_per_line(grid: tuple[int, int]) -> None:
    shape = (2, 3, 6, 7)
    assert_exact(lambda x: F.gaussian_nll_loss(x, torch.zeros_like(x), image(shape[:3]).exp()), shape, grid)
    assert_exact(lambda x: F.gaussian_nll_loss(x, x.detach() * 2, x.square().mean(-1) + 1, True), shape, grid)


@pytest.mark.parametrize("dim", [-1, 2])
def test_cosine_similarity_along_pixels(dim: int) -> None:
    assert_exact(lambda x: F.cosine_similarity(x, x.sin() + 1, dim), (2, 3, 6, 7), (2, 2))
    assert_exact(lambda x: F.cosine_similarity(x, image((1, 6, 7)), dim), (2, 3, 6, 7), (1, 3))
