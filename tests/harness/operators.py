"""The operators that tiles are tried on, one case per public function: how it is called, and whether it is exact or
refused. `test_functional_sweep.py` holds every case to what it says; docs/tiling.md's table is made of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from harness.ranks import image

Shape = tuple[int, ...]

IMAGE = {1: (2, 4, 13), 2: (2, 4, 9, 7), 3: (1, 4, 6, 5, 7)}
"""The images that cases are tried on, by spatial dims: 4 channels, odd sizes."""


@dataclass(frozen=True)
class Case:
    """One function of torch and how it is tried: `call` gets a tiled image per shape, then the plain tensors."""

    call: Callable[..., Any]
    note: str = ""
    """What a user should know, for the table."""
    dims: int = 2
    """How many spatial dims the images have."""
    images: tuple[Shape, ...] = ()
    """The shapes of the images, when they are not the usual one."""
    plain: tuple[Shape, ...] = ()
    """The shapes of tensors that every rank has whole: weights and the like."""
    refused: bool = False
    random: bool = False
    """Whether it draws random numbers: ranks then need generators of their own."""

    @property
    def shapes(self) -> list[Shape]:
        return list(self.images or (IMAGE[self.dims],))


def two(dims: int = 2) -> tuple[Shape, ...]:
    return IMAGE[dims], IMAGE[dims]


def labels(shape: Shape, classes: int) -> Tensor:
    """A class per pixel."""
    return (image(shape, 3).abs() * 7).long() % classes


def signs(shape: Shape) -> Tensor:
    """1 or -1 per value."""
    return image(shape, 4).sign()


def fractions(shape: Shape) -> Tensor:
    """Numbers between 0 and 1."""
    return torch.sigmoid(image(shape, 5))


def on_values(names: str, note: str = "") -> dict[str, Case]:
    """Functions of one tensor that need no other argument."""
    return {name: Case(getattr(F, name), note) for name in names.split()}


def in_place(names: str) -> dict[str, Case]:
    def make(name: str) -> Case:
        return Case(lambda x: getattr(F, name)(x.clone()))

    return {name: make(name) for name in names.split()}


def against(names: str, target: Callable[[Shape], Tensor] = image, note: str = "") -> dict[str, Case]:
    """Losses of an image against a dense target: the mean, and per pixel."""

    def make(name: str) -> Case:
        function = getattr(F, name)

        def call(x: Tensor) -> list[Tensor]:
            wanted = target(tuple(x.shape))
            return [function(x, wanted), function(x, wanted, reduction="sum"), function(x, wanted, reduction="none")]

        return Case(call, note)

    return {name: make(name) for name in names.split()}


def refuse(note: str, **calls: Any) -> dict[str, Case]:
    return {name: case if isinstance(case, Case) else Case(case, note, refused=True) for name, case in calls.items()}


def _pool_cases(d: int) -> dict[str, Case]:
    def get(name: str) -> Callable[..., Any]:
        return getattr(F, name.format(d))

    return {
        f"max_pool{d}d": Case(lambda x: get("max_pool{}d")(x, 3, 2, 1), dims=d),
        f"avg_pool{d}d": Case(lambda x: get("avg_pool{}d")(x, 3, 2, 1, count_include_pad=False), dims=d),
        f"lp_pool{d}d": Case(lambda x: get("lp_pool{}d")(x.abs() + 0.5, 2, 3, 2), dims=d),
        f"adaptive_avg_pool{d}d": Case(
            lambda x: (get("adaptive_avg_pool{}d")(x, 3), get("adaptive_avg_pool{}d")(x, 1)),
            "to one pixel: a plain tensor",
            dims=d,
        ),
        f"adaptive_max_pool{d}d": Case(lambda x: get("adaptive_max_pool{}d")(x, 3), dims=d),
        f"max_pool{d}d_with_indices": Case(
            lambda x: [*get("max_pool{}d_with_indices")(x, 3, 2, 1), *get("max_pool{}d_with_indices")(x, 2)],
            "indices count pixels of the whole",
            d,
        ),
        f"adaptive_max_pool{d}d_with_indices": Case(
            lambda x: get("adaptive_max_pool{}d_with_indices")(x, 3), "indices count pixels of the whole", d
        ),
        f"max_unpool{d}d": Case(
            lambda x: [
                get("max_unpool{}d")(*get("max_pool{}d")(x, 2, return_indices=True), 2, output_size=x.shape),
                get("max_unpool{}d")(*get("max_pool{}d")(x, 3, 2, 1, return_indices=True), 3, 2, 1, x.shape),
            ],
            "gathers where an index leaves its tile",
            d,
        ),
        f"dropout{d}d": Case(lambda x: get("dropout{}d")(x, 0.4), "drops what one device drops", d, random=True),
        f"conv{d}d": Case(
            lambda x, w, b: get("conv{}d")(x, w, b, stride=2, padding=1), dims=d, plain=((6, 4, *(3,) * d), (6,))
        ),
        f"conv_transpose{d}d": Case(
            lambda x, w, b: get("conv_transpose{}d")(x, w, b, stride=2, padding=1, output_padding=1),
            dims=d,
            plain=((4, 3, *(3,) * d), (3,)),
        ),
    }


def attention(x: Tensor) -> Tensor:
    """Over pixels in one dim: (batch, pixels, channels)."""
    x = x.transpose(1, 2)
    return F.scaled_dot_product_attention(x, 2 * x, x - 1)


def heads(x: Tensor, w: Tensor, b: Tensor, wo: Tensor, bo: Tensor) -> Any:
    x = x.permute(2, 0, 1)  # (pixels, batch, channels)
    out, weights = F.multi_head_attention_forward(
        x, x, x, 4, 2, w, b, None, None, False, 0.0, wo, bo, training=True, need_weights=True
    )
    return out, weights


FUNCTIONAL: dict[str, Case] = {
    # ------------------------------------------------------------------------------------------------- windows
    **_pool_cases(1),
    **_pool_cases(2),
    **_pool_cases(3),
    "unfold": Case(lambda x: F.unfold(x, 3, padding=1)),
    "fold": Case(lambda x: F.fold(x, (4, 5), 2), dims=1, images=((2, 8, 12),)),
    "interpolate": Case(
        lambda x: [
            F.interpolate(x, scale_factor=2, mode="nearest"),
            F.interpolate(x, (13, 5), mode="bilinear", align_corners=False),
            F.interpolate(x, (5, 11), mode="bicubic", align_corners=True),
            F.interpolate(x, (4, 3), mode="area"),
        ],
    ),
    "upsample": Case(lambda x: F.upsample(x, scale_factor=2)),
    "upsample_nearest": Case(lambda x: F.upsample_nearest(x, scale_factor=2)),
    "upsample_bilinear": Case(lambda x: F.upsample_bilinear(x, scale_factor=2)),
    "pad": Case(
        lambda x: [
            F.pad(x, (1, 2, 3, 0)),
            F.pad(x, (1, -1, -2, 1)),
            *[F.pad(x, (2, 1, 1, 2), mode=mode) for mode in ("reflect", "replicate", "circular")],
        ]
    ),
    "pixel_shuffle": Case(lambda x: F.pixel_shuffle(x, 2)),
    "pixel_unshuffle": Case(lambda x: F.pixel_unshuffle(x, 2), images=((1, 3, 8, 6),)),
    "channel_shuffle": Case(lambda x: F.channel_shuffle(x, 2)),
    "native_channel_shuffle": Case(lambda x: x * F.native_channel_shuffle(x.detach(), 2), "without gradient"),
    # --------------------------------------------------------------------------------------------------- norms
    "batch_norm": Case(
        lambda x, w, b: F.batch_norm(x, torch.zeros(4).double(), torch.ones(4).double(), w, b, training=True),
        "statistics over all tiles, running ones too",
        plain=((4,), (4,)),
    ),
    "instance_norm": Case(lambda x, w, b: F.instance_norm(x, weight=w, bias=b), plain=((4,), (4,))),
    "group_norm": Case(lambda x, w, b: F.group_norm(x, 2, w, b), plain=((4,), (4,))),
    "layer_norm": Case(
        lambda x, w, b: [F.layer_norm(x.permute(0, 2, 3, 1), (4,), w, b), F.layer_norm(x, (4, 9, 7))],
        "over channels on each pixel; over pixels too",
        plain=((4,), (4,)),
    ),
    "rms_norm": Case(lambda x, w: F.rms_norm(x.permute(0, 2, 3, 1), (4,), w), plain=((4,),)),
    "local_response_norm": Case(lambda x: F.local_response_norm(x, 3)),
    "normalize": Case(lambda x: F.normalize(x, dim=1)),
    # -------------------------------------------------------------------------------------- pixels on their own
    **on_values(
        "celu elu gelu hardshrink hardsigmoid hardswish hardtanh leaky_relu logsigmoid mish relu relu6 selu sigmoid "
        "silu softplus softshrink softsign tanh tanhshrink"
    ),
    "threshold": Case(lambda x: F.threshold(x, 0.1, -2.0)),
    "threshold_": Case(lambda x: F.threshold_(x.clone(), 0.1, -2.0)),
    **in_place("celu_ elu_ hardtanh_ leaky_relu_ relu_ selu_"),
    "prelu": Case(lambda x, w: F.prelu(x, w), plain=((4,),)),
    "glu": Case(lambda x: [F.glu(x, dim=1), F.glu(x[..., :8, :6], dim=2)]),
    "rrelu": Case(lambda x: F.rrelu(x, training=True), "in training draws what one device draws; gathers", random=True),
    "rrelu_": Case(lambda x: F.rrelu_(x.clone(), training=True), "as rrelu", random=True),
    "linear": Case(lambda x, w, b: F.linear(x.permute(0, 2, 3, 1), w, b), "over channels", plain=((5, 4), (5,))),
    "bilinear": Case(
        lambda x, y, w: F.bilinear(x.permute(0, 2, 3, 1), y.permute(0, 2, 3, 1), w),
        "write it as an einsum",
        images=two(),
        plain=((3, 4, 4),),
        refused=True,
    ),
    "embedding": Case(lambda x, w: F.embedding((x.abs() * 3).long() % 5, w), plain=((5, 3),)),
    "one_hot": Case(lambda x: F.one_hot((x.abs() * 3).long() % 5, 5) * x.unsqueeze(-1)),
    "cosine_similarity": Case(lambda x, y: F.cosine_similarity(x, y, dim=1), "over channels", images=two()),
    "pairwise_distance": Case(
        lambda x, y: [F.pairwise_distance(x, y), F.pairwise_distance(x.mT, y.mT, 1.0, keepdim=True)],
        "over the last dim",
        images=two(),
    ),
    "softmax": Case(lambda x: [F.softmax(x, 1), F.softmax(x, -1)], "over pixels the tensor is gathered"),
    "log_softmax": Case(lambda x: [F.log_softmax(x, 1), F.log_softmax(x, 2)], "over pixels the tensor is gathered"),
    "softmin": Case(lambda x: F.softmin(x, 1)),
    "gumbel_softmax": Case(lambda x: F.gumbel_softmax(x, dim=1), "draws what one device draws; gathers", random=True),
    "dropout": Case(lambda x: F.dropout(x, 0.4), "drops what one device drops", random=True),
    "alpha_dropout": Case(lambda x: F.alpha_dropout(x, 0.4, True), "drops what one device drops", random=True),
    "feature_alpha_dropout": Case(
        lambda x: F.feature_alpha_dropout(x, 0.4, True), "drops what one device drops", random=True
    ),
    "grid_sample": Case(
        lambda x, y: [
            F.grid_sample(x, y[:, :2].tanh().permute(0, 2, 3, 1), align_corners=False),
            F.grid_sample(x, image((2, 3, 5, 2), 1).tanh(), mode="bicubic", align_corners=True),
        ],
        "gathers the image; the grid may be tiles",
        images=two(),
    ),
    # ------------------------------------------------------------------------------------------------ attention
    "scaled_dot_product_attention": Case(attention, "own queries against gathered keys and values", dims=1),
    "multi_head_attention_forward": Case(
        heads, "own queries against gathered keys and values", dims=1, plain=((12, 4), (12,), (4, 4), (4,))
    ),
    # --------------------------------------------------------------------------------------------------- losses
    **against("mse_loss l1_loss smooth_l1_loss huber_loss"),
    **against("binary_cross_entropy_with_logits kl_div", fractions),
    **against("soft_margin_loss hinge_embedding_loss", signs),
    "binary_cross_entropy": Case(lambda x: F.binary_cross_entropy(torch.sigmoid(x), fractions(tuple(x.shape)))),
    "poisson_nll_loss": Case(lambda x: F.poisson_nll_loss(x, fractions(tuple(x.shape)))),
    "gaussian_nll_loss": Case(lambda x, y: F.gaussian_nll_loss(x, image(tuple(x.shape), 6), y.exp()), images=two()),
    "margin_ranking_loss": Case(lambda x, y: F.margin_ranking_loss(x, y, signs(tuple(x.shape)), 0.1), images=two()),
    "cross_entropy": Case(
        lambda x, w: [
            F.cross_entropy(x, labels((2, 9, 7), 4), w.abs().detach(), label_smoothing=0.1),
            F.cross_entropy(x, torch.softmax(image((2, 4, 9, 7), 2), 1)),
        ],
        plain=((4,),),
    ),
    "nll_loss": Case(lambda x: F.nll_loss(F.log_softmax(x, 1), labels((2, 9, 7), 4), ignore_index=1)),
    # -------------------------------------------------------------------------------------------------- refused
    **refuse(
        "random regions",
        fractional_max_pool2d=lambda x: F.fractional_max_pool2d(x, 2, (3, 3)),
        fractional_max_pool2d_with_indices=lambda x: F.fractional_max_pool2d_with_indices(x, 2, (3, 3)),
        fractional_max_pool3d=Case(
            lambda x: F.fractional_max_pool3d(x, 2, (2, 2, 2)), "random regions", dims=3, refused=True
        ),
        fractional_max_pool3d_with_indices=Case(
            lambda x: F.fractional_max_pool3d_with_indices(x, 2, (2, 2, 2)), "random regions", dims=3, refused=True
        ),
    ),
    "affine_grid": Case(
        lambda x: F.affine_grid(x[:, :2, 0:2, 0:3], (2, 4, 9, 7), align_corners=False),
        "transforms are not images",
        refused=True,
    ),
    **refuse(
        "compares vectors, not images",
        conv_tbc=Case(
            lambda x, w, b: F.conv_tbc(x, w, b), "use conv1d", dims=1, plain=((3, 13, 5), (5,)), refused=True
        ),
        ctc_loss=Case(
            lambda x: F.ctc_loss(x, torch.ones(4, 2).long(), torch.full((4,), 2), torch.full((4,), 2)),
            "compares sequences",
            dims=1,
            refused=True,
        ),
        cosine_embedding_loss=lambda x: F.cosine_embedding_loss(x, x, signs((2,))),
        triplet_margin_loss=lambda x: F.triplet_margin_loss(x, x + 1, x - 1),
        triplet_margin_with_distance_loss=lambda x: F.triplet_margin_with_distance_loss(x, x + 1, x - 1),
        multi_margin_loss=lambda x: F.multi_margin_loss(x, labels((2,), 4)),
        multilabel_margin_loss=lambda x: F.multilabel_margin_loss(x, labels((2, 4, 9, 7), 4)),
        multilabel_soft_margin_loss=lambda x: F.multilabel_soft_margin_loss(x, fractions((2, 4, 9, 7))),
        pdist=lambda x: F.pdist(x),
        embedding_bag=Case(
            lambda x, w: F.embedding_bag((x.abs() * 3).long() % 5, w), "sums over pixels", plain=((5, 3),), refused=True
        ),
        linear_cross_entropy=lambda x: F.linear_cross_entropy(x, torch.ones(4, 7), labels((2,), 4)),
    ),
    **refuse(
        "kernels for other layouts of data",
        grouped_mm=lambda x: F.grouped_mm(x, x),
        scaled_mm=lambda x: F.scaled_mm(x, x, x, None, x, None),
        scaled_grouped_mm=lambda x: F.scaled_grouped_mm(x, x, x, None, x, None),
    ),
}

NOT_OPERATORS = frozenset(
    "Callable DType Optional ScalingType SwizzleType Tensor assert_int_or_pair boolean_dispatch handle_torch_function "
    "has_torch_function has_torch_function_unary has_torch_function_variadic".split()
)
"""Names in torch.nn.functional that are no operators: types and torch's own machinery."""

SHAPE = (2, 4, 6, 5)
"""Of the image that all other functions of torch are tried on."""

# Random, or without values of their own; test_dropout.py, test_draw.py and the sweep of torch.nn.functional try these.
# And set_, which as a function of torch.Tensor bypasses tiles; as a method it is refused.
NOT_SWEPT = set(
    "alpha_dropout dropout feature_alpha_dropout feature_dropout empty_like set_ bernoulli bernoulli_ binomial cauchy_ "
    "exponential_ geometric_ log_normal_ normal normal_ poisson random_ uniform_".split()
)

Arguments = Callable[[Tensor], tuple[Any, ...]]
ARGUMENTS: tuple[Arguments, ...] = (
    lambda x: (x,),
    lambda x: (x, x),
    lambda x: (x, 2.0),
    lambda x: (x, 1),
    lambda x: (x, -1),
    lambda x: (x, 1, 1),
    lambda x: (x, -1, 1),
    lambda x: (x, 1, 0, 1),
    lambda x: (x, (0, 2, 3, 1)),
    lambda x: (x, (2, 4, 30)),
    lambda x: ([x, x],),
    lambda x: ([x, x], -1),
    lambda x: (x, x, x),
    lambda x: (x, 1, torch.tensor([0, 2])),
    lambda x: (x, -1, torch.tensor([0, 2])),
    lambda x: (x, x > 0, 1.0),
    lambda x: (x > 0, x, -x),
    lambda x: (x > 0, x < 1),
    lambda x: (x, (slice(None), 0)),
    lambda x: (x, (Ellipsis, slice(1, 4))),
    lambda x: (x, (Ellipsis, slice(1, 4)), 1.0),
    lambda x: (x, image((5, 3), 1)),
    lambda x: ("nchw,dc->ndhw", x, image((3, 4), 1)),
    lambda x: (x, 2, (3, 2)),
)
"""What they are tried with, each with the first that one device takes."""
