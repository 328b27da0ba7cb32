"""Attention whose queries are tiles: each rank answers the queries it holds, from all the keys and values they look at.

Exact; the scores, the largest tensor by far, stay cut. Where sequences lie side by side (rows of an image) a rank
fetches only its own. Attention with dropout is computed whole, as one device draws it. Knows nothing of messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from inspect import signature
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from halocline.tiling.boxes import Box, Interval
from halocline.tiling.plain import all_for_tiles
from halocline.tiling.route import move
from halocline.tiling.rules.gathered import cut_again, on_wholes, whole
from halocline.tiling.rules.shape import moved
from halocline.tiling.spec import TileSpec
from halocline.tiling.tensor import TileTensor, rule, untiled


def _looked_at(tensor: Tensor, queries: TileSpec, line: int, function: Any) -> Tensor:
    """What the queries held by each rank look at of keys, values or a mask: all of the dim `line` (negative), and of
    the other dims in which queries are cut, if they are of the same size, what is held of the queries. A plain tensor
    is one of `_shared`.
    """

    def interval(held: Box, dim: int, size: int) -> Interval:
        axis = queries.dims.index(dim) if dim in queries.dims and dim != line else None
        return (0, size) if axis is None or queries.size[axis] != size else held[axis]

    part: Tensor = tensor
    done: tuple[int, ...] = ()
    if isinstance(tensor, TileTensor):
        spec, done = tensor.spec, tensor.spec.dims
        if spec.exchanger is not queries.exchanger:
            raise untiled(function, (tensor,), why="the tiles belong to different groups of ranks")
        need = [tuple(interval(held, d, n) for d, n in zip(spec.dims, spec.size)) for held in queries.have]
        part = move(tensor.local, spec.own, need, spec.exchanger, spec.dims, spec.held)
    for dim in queries.dims:
        if dim not in done and part.ndim >= -dim:
            start, stop = interval(queries.held, dim, part.shape[dim])
            part = part.narrow(dim, start, stop - start)
    return part


def _shared(values: Sequence[Any], spec: TileSpec) -> list[Any]:
    """Plain tensors among the arguments of a call, to be used on what each rank holds; before anything is exchanged."""
    plain = iter(all_for_tiles([v for v in values if not isinstance(v, TileTensor)], spec.exchanger))
    return [v if isinstance(v, TileTensor) else next(plain) for v in values]


def _recut(out: Tensor, spec: TileSpec, dims: tuple[int, ...]) -> Tensor:
    """A whole result as tiles, if it is of the tiles' size in the dims that are now theirs."""
    spec = moved(spec, dims)
    return cut_again(out, spec) if all(out.shape[d] == n for d, n in zip(spec.dims, spec.size)) else out


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
    """Over the dims (..., sequence, channels)."""
    function = F.scaled_dot_product_attention
    run = partial(function, dropout_p=dropout_p, scale=scale, enable_gqa=enable_gqa)
    if not isinstance(query, TileTensor):  # queries that every rank has
        return on_wholes(run, query, key, value, attn_mask, is_causal=is_causal)
    spec = query.spec
    # Keys with samples, or heads, of their own for queries that have one in a cut dim, or that share heads.
    others = [t for t in (key, value, attn_mask) if t is not None]
    wider = any(t.ndim >= -d and t.shape[d] > n for t in others for d, n in zip(spec.dims, spec.size) if d != -2)
    if dropout_p > 0.0 or -1 in spec.dims or wider or (enable_gqa and -3 in spec.dims):
        return _recut(on_wholes(run, query, key, value, attn_mask, is_causal=is_causal), spec, spec.dims)
    again = value is key
    key, value, mask = _shared((key, value, attn_mask), spec)
    mask = None if mask is None else _looked_at(mask, spec, -1, function)
    keys = _looked_at(key, spec, -2, function)
    values = keys if again else _looked_at(value, spec, -2, function)
    if is_causal and -2 in spec.dims:
        if mask is not None:
            raise ValueError("give one of attn_mask and is_causal")
        start, stop = spec.held[spec.dims.index(-2)]
        mask = torch.ones(stop - start, keys.shape[-2], dtype=torch.bool, device=keys.device).tril(start)
        is_causal = False
    return TileTensor.wrap(run(query.local, keys, values, mask, is_causal=is_causal), spec)


# The arguments after query, key and value, by position.
_REST = tuple(signature(F.multi_head_attention_forward).parameters)[3:]


@rule(F.multi_head_attention_forward)
def multi_head_attention_forward(
    query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any
) -> tuple[Tensor, Tensor | None]:
    """Over (sequence, batch, channels) or (sequence, channels), cut in the sequence, in the batch or in both."""
    function = F.multi_head_attention_forward
    given = {**dict(zip(_REST, args)), **kwargs}
    if not isinstance(query, TileTensor):
        return on_wholes(function, query, key, value, **given)
    spec = query.spec
    # Where the queries' dims lie in the attention's weights: ([batch, [heads,]] queries, keys).
    heads = not given.get("average_attn_weights", True)
    batched = {-3: -2, -2: -4 if heads else -3, -1: -1}
    scores = tuple(batched[d] if query.ndim == 3 else d for d in spec.dims)
    random = given["dropout_p"] > 0.0 and given.get("training", True)
    if random or -1 in spec.dims or given.get("static_k") is not None or given.get("static_v") is not None:
        queries = whole(query)
        keys = queries if key is query else whole(key)
        values = keys if value is key else whole(value)
        out, weights = on_wholes(function, queries, keys, values, **given)
        return _recut(out, spec, spec.dims), None if weights is None else _recut(weights, spec, scores)
    again, line = value is key, -query.ndim
    key, value, *shared = _shared((key, value, *map(whole, given.values())), spec)
    given = dict(zip(given, shared))
    masks = _masks(given, query, function)
    if query.local.numel():
        given.update(masks)
    given["is_causal"] = False  # only a hint that the mask given is causal, and untrue of a part of it
    keys = _looked_at(key, spec, line, function)
    values = keys if again else _looked_at(value, spec, line, function)
    out, weights = function(query.local, keys, values, **given)
    if not query.local.numel():  # without masks, of which torch cannot tell the shape; but their gradient is awaited
        out = out + sum(0.0 * mask.sum() for mask in masks.values() if mask is not None and mask.requires_grad)
    return TileTensor.wrap(out, spec), None if weights is None else TileTensor.wrap(weights, moved(spec, scores))


def _masks(given: dict[str, Any], query: TileTensor, function: Any) -> dict[str, Tensor | None]:
    """The masks for the queries held, taken out of the arguments given."""
    spec, mask, ignored = query.spec, given.pop("attn_mask", None), given.pop("key_padding_mask", None)
    if ignored is not None:  # (batch, keys), or (keys)
        ignored = _looked_at(ignored, spec, -1, function)
    if mask is not None:  # (queries, keys), or (batch * heads, queries, keys)
        by_sample = mask.ndim == 3 and query.ndim == 3
        if by_sample:
            mask = mask.unflatten(0, (query.shape[1], -1))
        places = {-3: -2, -2: -4, -1: -1}
        rows = moved(spec, tuple(places[d] for d in spec.dims)) if query.ndim == 3 else spec
        mask = _looked_at(mask, rows, -1, function)
        mask = mask.flatten(0, 1) if by_sample else mask
    return {"attn_mask": mask, "key_padding_mask": ignored}
