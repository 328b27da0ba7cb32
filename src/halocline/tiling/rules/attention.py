"""Attention whose queries are tiles: each rank answers its own queries, from keys and values gathered over all ranks.

Exact; the scores, the largest tensor by far, stay cut. Attention with dropout is computed whole, as one device draws
it. Knows nothing of messages.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from inspect import signature
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from halocline.tiling.plain import all_for_tiles, cut, for_tiles
from halocline.tiling.rules.elementwise import align, part_of
from halocline.tiling.rules.gathered import cut_within
from halocline.tiling.spec import TileSpec
from halocline.tiling.tensor import TileTensor, rule, untiled


def whole(tensor: Any) -> Any:
    """The whole of a tile; anything else as it is."""
    return tensor.full() if isinstance(tensor, TileTensor) else tensor


def copied(tensor: Tensor, spec: TileSpec) -> Tensor:
    """The whole of a tile or of a plain tensor, to be used with what ranks hold under `spec`."""
    return tensor.everywhere() if isinstance(tensor, TileTensor) else for_tiles(tensor, spec.exchanger)


def _recut(out: Tensor, spec: TileSpec) -> TileTensor:
    return TileTensor.wrap(cut(out, spec), spec)


@rule(F.scaled_dot_product_attention)
def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Over the dims (..., sequence, channels) of a tile that is cut in its sequence, or in dims before it only."""
    run = partial(F.scaled_dot_product_attention, dropout_p=dropout_p, scale=scale, enable_gqa=enable_gqa)
    if not isinstance(query, TileTensor):  # queries that every rank has
        return run(query, whole(key), whole(value), whole(attn_mask), is_causal=is_causal)
    if cut_within(query, -1):
        raise untiled(F.scaled_dot_product_attention, (query, key, value), why="the channels, dim -1, are cut")
    cut = [d for d in query.spec.dims if cut_within(query, d)]
    alike = all(isinstance(t, TileTensor) and t.spec == query.spec for t in (key, value))
    if dropout_p == 0.0 and -2 not in cut and alike and not isinstance(attn_mask, TileTensor):
        # Each row attends within itself, as with windows, or rows of the image, in dims of their own.
        (q, k, v), spec = align((query, key, value), F.scaled_dot_product_attention)
        mask = None if attn_mask is None else part_of(attn_mask, spec)
        return TileTensor.wrap(run(q, k, v, mask, is_causal=is_causal), spec)
    if dropout_p > 0.0 or cut not in ([], [-2]) or -2 not in query.spec.dims:
        out = run(query.full(), whole(key), whole(value), whole(attn_mask), is_causal=is_causal)
        return _recut(out, query.spec.without_margin())
    spec, keys = query.spec, copied(key, query.spec)
    start, stop = spec.held[spec.dims.index(-2)]
    mask = None if attn_mask is None else copied(attn_mask, spec)
    if mask is not None and mask.shape[-2] != 1:
        mask = mask[..., start:stop, :]
    if is_causal:
        if mask is not None:
            raise ValueError("give one of attn_mask and is_causal")
        mask = torch.ones(stop - start, keys.shape[-2], dtype=torch.bool, device=keys.device).tril(start)
    return TileTensor.wrap(run(query.local, keys, copied(value, spec), mask), spec)


# The arguments after query, key and value, by position.
_REST = tuple(signature(F.multi_head_attention_forward).parameters)[3:]


@rule(F.multi_head_attention_forward)
def multi_head_attention_forward(
    query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any
) -> tuple[Tensor, Tensor | None]:
    """Over (sequence, batch, channels) or (sequence, channels), cut in the sequence or in the batch."""
    given = {**dict(zip(_REST, args)), **kwargs}
    function = F.multi_head_attention_forward
    given = {name: whole(value) for name, value in given.items()}
    if not isinstance(query, TileTensor):
        return function(query, whole(key), whole(value), **given)
    spec = query.spec
    if query.ndim == 3 and spec.dims == (-2,):
        return _sample_by_sample(query, key, value, given)
    if spec.dims != (-query.ndim,):
        raise untiled(function, (query, key, value), why="only the sequence, dim 0, or the batch may be cut")
    # The tiles of the attention's weights, (batch, heads, queries, keys) or fewer dims: cut in the queries.
    scores = spec.with_dims((-2,))
    if given["dropout_p"] > 0.0 and given.get("training", True):
        out, weights = function(*_all(whole, query, key, value), **given)
        spec, scores = spec.without_margin(), scores.without_margin()
        return _recut(out, spec), None if weights is None else _recut(weights, scores)
    mask = given.pop("attn_mask", None)
    given = _shared(given, spec)
    given["attn_mask"] = None if mask is None else part_of(mask, scores)
    _, keys, values = _all(lambda tensor: copied(tensor, spec), None, key, value)
    given["is_causal"] = False  # only a hint that the mask given is causal, and untrue of a part of it
    out, weights = function(query.local, keys, values, **given)
    return TileTensor.wrap(out, spec), None if weights is None else TileTensor.wrap(weights, scores)


def _all(function: Callable[[Any], Any], *tensors: Any) -> list[Any]:
    """`function` of each tensor, once where they are the same: attention within a sequence sees it as one."""
    done: dict[int, Any] = {}
    return [
        None if t is None else done[id(t)] if id(t) in done else done.setdefault(id(t), function(t)) for t in tensors
    ]


def _shared(given: dict[str, Any], spec: TileSpec) -> dict[str, Any]:
    """The parameters of a call, to be used on what each rank holds."""
    return dict(zip(given, all_for_tiles(tuple(given.values()), spec.exchanger)))


def _sample_by_sample(
    query: TileTensor, key: Tensor, value: Tensor, given: dict[str, Any]
) -> tuple[TileTensor, TileTensor | None]:
    """Over (sequence, batch, channels) cut in the batch: each rank needs nothing but its own samples."""
    function = F.multi_head_attention_forward
    spec, mask = query.spec.without_margin(), given.get("attn_mask")
    average = given.get("average_attn_weights", True)
    scores = spec.with_dims((-3,) if average else (-4,))
    random = given["dropout_p"] > 0.0 and given.get("training", True)
    alike = all(isinstance(t, TileTensor) and t.spec.cuts == spec.cuts for t in (key, value))
    if random or not alike or (mask is not None and mask.ndim == 3):
        out, weights = function(*_all(whole, query, key, value), **given)
        return _recut(out, spec), None if weights is None else _recut(weights, scores)
    ignored = given.pop("key_padding_mask", None)
    given = _shared(given, spec)
    given["key_padding_mask"] = None if ignored is None else part_of(ignored, spec)
    assert isinstance(key, TileTensor) and isinstance(value, TileTensor)
    out, weights = function(query.owned, key.owned, value.owned, **given)
    return TileTensor.wrap(out, spec), None if weights is None else TileTensor.wrap(weights, scores)
