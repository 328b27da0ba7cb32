"""The partition: which consecutive layers form each stage, by the methods that --balance names.

Pure arithmetic over layer numbers: it sees costs, parameter counts or kinds of layers, never a model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate, pairwise

from halocline.plan.require import require_choice, require_degree, require_type

Ranges = tuple[tuple[int, int], ...]
"""For each stage its first layer and its last + 1."""

METHODS = ("balance", "uniform", "uniform_floor", "uniform_transformer", "parameters", "custom", "profile", "autopipe")
"""`balance:4,4,4` and `custom:0,4,8,12` carry their numbers; autopipe is Merak's name for profile."""

KINDS = ("embedding", "block", "encoder", "decoder", "head")
"""What uniform_transformer needs to know of each layer; whatever else a model has counts as embedding or head."""


def partition(
    method: str | Sequence[int],
    layers: int,
    stages: int,
    *,
    costs: Sequence[float] | None = None,
    parameters: Sequence[float] | None = None,
    kinds: Sequence[str] | None = None,
) -> Ranges:
    """The layers of each stage.

    balance              layers per stage, as numbers or as "4,4,4"
    uniform              ceil(L / P) layers each, the last stage takes what is left
    uniform_floor        floor(L / P) layers each; what is left goes, one each, to the last stages, because in 1F1B the
                         first ones already hold the most activations
    uniform_transformer  the same number of transformer blocks each; what is left goes, one each, to the first stages,
                         because the last one has the head. Encoder blocks fill the first half, decoder blocks the rest
    parameters           the heaviest stage by parameter count is as light as possible
    custom:0,a,...,L     the first layer of each stage, then the number of layers
    profile              the slowest stage by cost per layer is as fast as possible (autopipe means the same)
    """
    require_degree("layers", layers)
    require_degree("stages", stages)
    if layers < stages:
        raise ValueError(f"layers = {layers} cannot fill stages = {stages}: use at most {layers} stages")
    if not isinstance(method, str):
        return _balance(tuple(method), layers, stages)
    name, _, numbers = method.partition(":")
    if name.replace(",", "").replace(" ", "").isdigit():
        name, numbers = "balance", method
    require_choice("balance", name, METHODS)
    if name == "balance":
        return _balance(whole_numbers("balance", numbers), layers, stages)
    if name == "custom":
        return _custom(whole_numbers("custom", numbers), layers, stages)
    if numbers:
        raise ValueError(f"balance = {method!r} carries numbers but {name} takes 0: write {name!r}")
    if name == "uniform":
        return _uniform(layers, stages)
    if name == "uniform_floor":
        return _ranges(sorted(_even(layers, stages)))
    if name == "uniform_transformer":
        return _uniform_transformer(_known(name, "kinds", kinds, layers), stages)
    if name == "parameters":
        return _lightest(_weights("parameters", _known(name, "parameters", parameters, layers)), stages)
    return _lightest(_weights("costs", _known(name, "costs", costs, layers)), stages)


def whole_numbers(field: str, text: str | int | Sequence[int]) -> tuple[int, ...]:
    """A comma list as numbers; a number or a sequence of them passes."""
    if isinstance(text, str):
        words = [word.strip() for word in text.split(",")]
        for word in words:
            if not word.removeprefix("-").isdecimal():
                raise ValueError(
                    f"{field} = {text!r} is not a comma list of whole numbers: {word!r} should be one, e.g. 4"
                )
        return tuple(int(word) for word in words)
    numbers: tuple[int, ...] = (text,) if isinstance(text, int) else tuple(text)
    for number in numbers:
        require_type(field, number, int, "whole numbers, e.g. 4,4,4")
    return numbers


# -- by given numbers ----------------------------------------------------------------------------------------------


def _balance(numbers: tuple[int, ...], layers: int, stages: int) -> Ranges:
    numbers = whole_numbers("balance", numbers)
    if len(numbers) != stages:
        raise ValueError(f"balance has {len(numbers)} numbers for {stages} stages: give {stages}, one per stage")
    for number in numbers:
        if number < 1:
            raise ValueError(f"balance = {_text(numbers)} gives a stage {number} layers: give each at least 1")
    if sum(numbers) != layers:
        change = layers - sum(numbers)
        fix = f"add {change}" if change > 0 else f"take {-change} away"
        raise ValueError(f"balance = {_text(numbers)} sums to {sum(numbers)} but the model has {layers} layers: {fix}")
    return _ranges(numbers)


def _custom(bounds: tuple[int, ...], layers: int, stages: int) -> Ranges:
    shown = f"custom:{_text(bounds)}"
    if len(bounds) != stages + 1:
        raise ValueError(
            f"balance = {shown} has {len(bounds)} numbers for {stages} stages: give {stages + 1}, "
            f"the first layer of each stage and then the number of layers"
        )
    if bounds[0] != 0:
        raise ValueError(f"balance = {shown} starts at {bounds[0]}: start at 0, the first layer")
    for before, after in pairwise(bounds):
        if after <= before:
            raise ValueError(
                f"balance = {shown} is out of order, {after} follows {before}: each number must be larger "
                f"than the one before, use {before + 1} or more"
            )
    if bounds[-1] != layers:
        raise ValueError(f"balance = {shown} ends at {bounds[-1]} but the model has {layers} layers: end at {layers}")
    return tuple(pairwise(bounds))


# -- by count ------------------------------------------------------------------------------------------------------


def _uniform(layers: int, stages: int) -> Ranges:
    size = math.ceil(layers / stages)
    last = layers - size * (stages - 1)
    if last < 1:
        raise ValueError(
            f"balance = 'uniform' puts {size} layers on each stage and leaves none of {layers} for the last "
            f"of {stages}: use uniform_floor, or {math.ceil(layers / size)} stages"
        )
    return _ranges([size] * (stages - 1) + [last])


def _uniform_transformer(kinds: Sequence[str], stages: int) -> Ranges:
    for kind in kinds:
        require_choice("kinds", kind, KINDS)
    blocks = [layer for layer, kind in enumerate(kinds) if kind in ("block", "encoder", "decoder")]
    decoders = sum(kind == "decoder" for kind in kinds)
    encoders = len(blocks) - decoders
    if not encoders or not decoders:
        shares = _even_blocks("transformer", len(blocks), stages)
    elif stages % 2:
        raise ValueError(
            f"stages = {stages} is odd: uniform_transformer gives half of them to the {encoders} encoder blocks and "
            f"half to the {decoders} decoder blocks, use {stages + 1} stages or a custom list"
        )
    else:
        half = stages // 2
        shares = _even_blocks("encoder", encoders, half) + _even_blocks("decoder", decoders, half)
    bounds = [0]
    for count in accumulate(shares[:-1]):
        # A stage starts at its first block, or at an embedding just before it, which no other stage needs.
        first = blocks[count]
        while kinds[first - 1] == "embedding":
            first -= 1
        bounds.append(first)
    return tuple(pairwise([*bounds, len(kinds)]))


def _even_blocks(what: str, blocks: int, stages: int) -> list[int]:
    if not blocks:
        raise ValueError(f"kinds name 0 {what} blocks for {stages} stages: use another method, e.g. uniform_floor")
    if blocks < stages:
        raise ValueError(f"kinds name {blocks} {what} blocks for {stages} stages: use at most {blocks} stages there")
    return _even(blocks, stages)


def _even(count: int, parts: int) -> list[int]:
    return [count // parts + (part < count % parts) for part in range(parts)]


# -- by weight -----------------------------------------------------------------------------------------------------


def _lightest(weights: Sequence[float], stages: int) -> Ranges:
    """The cut whose heaviest stage is lightest, exactly; among those, the one with the smallest sum of squares, which
    spreads what is left evenly."""
    prefix = [0, *accumulate(weights)]
    return _evenest(prefix, stages, _bottleneck(prefix, stages))


def _bottleneck(prefix: Sequence[float], stages: int) -> float:
    """The least possible weight of the heaviest stage: best[j] is that of the first j layers in so many stages.

    Moving the last cut i to the right makes what is before it heavier and what is after it lighter; the best i is
    where the two cross, and it only moves right as j grows. That makes one stage O(layers).
    """
    layers = len(prefix) - 1
    best = [*prefix]
    for stage in range(2, stages + 1):
        longer = [math.inf] * (layers + 1)
        i = stage - 1
        for j in range(stage, layers + 1):
            while i + 1 < j and best[i] < prefix[j] - prefix[i]:
                i += 1
            longer[j] = max(best[i], prefix[j] - prefix[i])
            if i > stage - 1:
                longer[j] = min(longer[j], max(best[i - 1], prefix[j] - prefix[i - 1]))
        best = longer
    return best[layers]


def _evenest(prefix: Sequence[float], stages: int, limit: float) -> Ranges:
    """The cut with the smallest sum of squared stage weights among those with no stage above `limit`.

    The squares satisfy the quadrangle inequality, so the best last cut only moves right with the end j: solve the
    middle j, then each half between the cuts found (divide and conquer, O(layers log layers) a stage).
    """
    layers = len(prefix) - 1
    # The earliest start a stage that ends at j may have without exceeding the limit.
    earliest = [0] * (layers + 1)
    for j in range(1, layers + 1):
        start = earliest[j - 1]
        while prefix[j] - prefix[start] > limit:
            start += 1
        earliest[j] = start
    total: list[float] = [0] + [math.inf] * layers
    cuts: list[list[int]] = []
    reach = 0  # the last layer so many stages can cover
    for stage in range(1, stages + 1):
        before, total, cut = total, [math.inf] * (layers + 1), [0] * (layers + 1)
        end = max(j for j in range(reach, layers + 1) if earliest[j] <= reach)
        todo = [(stage, end, stage - 1, reach)]
        while todo:
            low, high, first, last = todo.pop()
            if low > high:
                continue
            j = (low + high) // 2
            choices = range(max(first, earliest[j]), min(last, j - 1) + 1)
            total[j], cut[j] = min((before[i] + (prefix[j] - prefix[i]) ** 2, i) for i in choices)
            todo += [(low, j - 1, first, cut[j]), (j + 1, high, cut[j], last)]
        cuts.append(cut)
        reach = end
    bounds = [layers]
    for cut in reversed(cuts):
        bounds.append(cut[bounds[-1]])
    return tuple(pairwise(reversed(bounds)))


# -- pieces --------------------------------------------------------------------------------------------------------


def _ranges(sizes: Sequence[int]) -> Ranges:
    return tuple(pairwise([0, *accumulate(sizes)]))


def _known(method: str, name: str, values: Sequence | None, layers: int) -> Sequence:
    if values is None:
        raise ValueError(
            f"balance = {method!r} needs {name} for each of the {layers} layers and got 0: pass {name}=[...]"
        )
    if len(values) != layers:
        raise ValueError(f"{name} has {len(values)} entries but the model has {layers} layers: give one per layer")
    return values


def _weights(name: str, values: Sequence[float]) -> Sequence[float]:
    for layer, value in enumerate(values):
        require_type(f"{name}[{layer}]", value, float, "a number of at least 0")
        if not 0 <= value < math.inf:
            raise ValueError(f"{name}[{layer}] = {value} is not a finite number of at least 0: measure the layer again")
    return values


def _text(numbers: Sequence[int]) -> str:
    return ",".join(map(str, numbers))
