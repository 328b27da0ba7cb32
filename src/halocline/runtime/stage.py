"""A stage at work on one rank: its layers run forward and backward for one microbatch after the other.

Knows tensors, tiles and autograd; nothing of messages, schedules or other stages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode
from torch.func import functional_call

import halocline.tiling.rules  # noqa: F401  (a tile without rules could do nothing)
from halocline.plan.stage import Stage
from halocline.runtime.batch import Measure
from halocline.runtime.boundary.crossing import BATCH, Crossing, box_of, crossing_of, positions, target_crossing
from halocline.runtime.boundary.outputs import (
    as_tensors,
    describe,
    input_of,
    outputs_of,
    require_no_twin,
    require_same_again,
    twins_in,
)
from halocline.runtime.guards.errors import named, tell
from halocline.runtime.halves import Branch, input_half, weight_half
from halocline.runtime.layers import Layers, derived_seed, parameters_of
from halocline.runtime.offload import offloaded
from halocline.runtime.parallel.shard import is_sharded
from halocline.runtime.parallel.sharding import Shadow
from halocline.runtime.parallel.statistics import any_momentum, tracked
from halocline.tiling.exchanger import Exchanger, NoCommunication
from halocline.tiling.fusion import prefetched
from halocline.tiling.patchwork import Patchwork
from halocline.tiling.randomness import seed_randomness
from halocline.tiling.spec import TileSpec
from halocline.tiling.tensor import TileTensor
from halocline.tiling.untouched import untouched

Loss = Callable[[Any, Any], Tensor]


def sums_of(measures: Mapping[str, Measure], value: Any, target: Any) -> Tensor:
    """What each measure finds of an output."""
    with torch.no_grad():
        found = {name: measure(value, target) for name, measure in measures.items()}
    for name, one in found.items():
        if not isinstance(one, Tensor) or isinstance(one, TileTensor) or one.ndim:
            raise ValueError(f"measure {name!r} returned {describe(one)}: it must return one number")
    return torch.stack([one.detach().double() for one in found.values()])


@dataclass
class StageOptions:
    """How stages compute; the same on every rank."""

    seed: int = 0
    autocast: torch.dtype | None = None
    """Run forwards under autocast to this dtype, e.g. torch.bfloat16."""
    channels_last: bool = False
    offload: bool = False
    """Keep activations in host memory until their backward."""
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))


@dataclass
class Held:
    """What a stage keeps of one microbatch between its forward and its backward."""

    inputs: list[Tensor]
    """Local parts, as leaves of the graph."""
    received: tuple[Crossing, ...]
    outputs: list[Tensor] = field(default_factory=list)
    """Local parts of what goes on, or the scaled loss on the last stage."""
    leaving: tuple[Crossing, ...] = ()
    """How the team holds what goes on."""
    first: list[Tensor] = field(default_factory=list)
    """Copies of `outputs`, of the one forward that its recomputation is compared with."""
    recorded: bool = False
    """Whether `outputs` know how they came about; not so when a recomputation is to follow."""
    target: Any = None
    measures: Mapping[str, Measure] = field(default_factory=dict)
    """What the first forward is to find of the output."""
    sums: Tensor | None = None
    """What it found."""
    gradients: list[Tensor | None] = field(default_factory=list)
    """Of the outputs; filled by what the next stage sends back."""
    input_gradients: list[Tensor | None] = field(default_factory=list)
    branches: list[Branch] = field(default_factory=list)
    """What the second half of a backward in two starts from."""


class StageRunner:
    """The layers of one stage on this rank, for one pipe."""

    def __init__(
        self,
        number: int,
        stage: Stage,
        member: int,
        layers: Layers,
        exchanger: Exchanger | None,
        order: Sequence[int],
        options: StageOptions,
        fused: int = 0,
        loss: Loss | None = None,
        shadow: Shadow | None = None,
    ) -> None:
        self.number, self.stage, self.member = number, stage, member
        self.layers = list(layers)
        self.exchanger = exchanger
        """Between the ranks of the team; None where one rank has the stage for itself."""
        self.order = tuple(order)
        """Member of the team -> its rank in the exchanger (groups sort their ranks; a mirrored team descends)."""
        self.options, self.loss = options, loss
        self.fused = fused if stage.tile_count > 1 else 0
        """How many layers share one halo exchange; 0: each operator has its own."""
        self._specs: dict[Any, TileSpec] = {}
        self.shadow = shadow
        """The layers without data, where shapes cannot be found from the real ones."""
        self.scale: Tensor | None = None
        """What multiplies the loss for its backward."""
        self._divided_loss = True
        self._writes: dict[bool, bool] = {}
        """Training or not -> whether the layers write to their input, as a first Dropout(inplace=True) does if so;
        known after a forward."""
        self._compared = False
        """Whether a forward was kept to be compared with its recomputation."""
        self._unseen = stage.tensor > 1
        """Whether no forward has shown yet that nothing random happens to what tensor ranks hold in parts."""

    # -- tiles ---------------------------------------------------------------------------------------------------

    def origin(self, crossing: Crossing) -> tuple[tuple[int, int], ...]:
        """The box of a tensor that this rank holds."""
        return box_of(crossing, self.stage, self.member)

    def _widest(self, crossing: Crossing) -> int:
        """The place in the team that shows best how a tensor lies in memory: a dim that is one wide shows little."""
        boxes = [crossing.box(at) for at in positions(self.stage, crossing)[:: self.stage.tensor]]
        return max(range(len(boxes)), key=lambda place: (min((b - a for a, b in boxes[place]), default=0), -place))

    def spec(self, crossing: Crossing, exchanger: Exchanger) -> TileSpec:
        """How the team holds a tensor, in the tiling room's terms."""
        key = crossing.size, crossing.cuts, isinstance(exchanger, NoCommunication)
        if key not in self._specs:
            ndim = len(crossing.size)
            cuts = tuple(points for _, points in crossing.cuts)
            dims = tuple(dim - ndim for dim, _ in crossing.cuts)
            at = positions(self.stage, crossing)[:: self.stage.tensor]
            ranks = tuple(rank for _, rank in sorted(zip(at, self.order)))
            self._specs[key] = TileSpec(cuts, exchanger, dims, ranks)
        return self._specs[key]

    def _wrap(self, local: Tensor, crossing: Crossing, exchanger: Exchanger | None) -> Tensor:
        if exchanger is None or not crossing.cuts:
            return local
        return TileTensor.wrap(local, self.spec(crossing, exchanger))

    def _leaving(self, tensor: Tensor) -> tuple[Tensor, Crossing]:
        """This rank's part of a tensor that goes on, and how the team holds it: cut as its input was, each rank in its
        place (a flip lets ranks change places), or whole on every rank."""
        if isinstance(tensor, TileTensor):
            stage, spec = self.stage, tensor.spec
            grid = (stage.lanes,) * (stage.lanes > 1) + stage.tiles * (stage.tile_count > 1)
            crossing = crossing_of(tensor)
            if spec.grid == grid and (stage.lanes == 1 or crossing.cuts[0][0] == BATCH):
                return tensor.retiled(self.spec(crossing, spec.exchanger)).local, crossing
            tensor = tensor.full()
        return tensor, crossing_of(tensor)

    # -- shapes --------------------------------------------------------------------------------------------------

    def crossings_after(self, received: Sequence[Crossing], made: bool = False) -> tuple[Crossing, ...]:
        """What the stage hands on, found by running it on tensors without data; with `made`, before it is put in order
        for the next stage."""
        exchanger, member = None, self.member
        if self.exchanger is not None:  # every rank as the same one, so that all find the same
            place = self._widest(received[0])
            exchanger, member = NoCommunication(self.order[place], self.exchanger.size), place * self.stage.tensor
        mode = self.shadow.mode if self.shadow is not None else FakeTensorMode(allow_non_fake_inputs=True)
        layers = self.layers if self.shadow is None else self.shadow.layers
        eager = torch.compiler.set_stance("force_eager")
        modules = [module for _, layer in layers for module in layer.modules()]
        kept = untouched(modules, own_tensors=True)  # of which copies are real: a layer may ask for values of its own
        with kept, mode, torch.no_grad(), self._autocast(), eager, any_momentum(tracked(layers)):
            inputs = []
            for crossing in received:
                fake = crossing.empty(box_of(crossing, self.stage, member), self.options.device)
                inputs.append(self._wrap(fake, crossing, exchanger))
            value = input_of(inputs, received)
            for name, layer in layers:
                given = (*layer.named_parameters(), *layer.named_buffers())
                try:
                    state: dict[str, Tensor] = {key: mode.from_tensor(tensor) for key, tensor in given}
                    # Each tensor under one name: of a module with two, torch would not put the tensors back.
                    value = functional_call(layer, state, (value,), tie_weights=False)
                except (DataDependentOutputException, DynamicOutputShapeException) as error:
                    raise ValueError(
                        f"layer {name} ({type(layer).__name__}) asks for values of its data (an if, .item(), nonzero), "
                        f"and what crosses a stage boundary is found without data: decide by shapes there, or put the "
                        f"layer into the last stage"
                    ) from error
                except Exception as error:
                    tell(error, f"layer {name} ({type(layer).__name__})", ", run without data to find its shapes")
                    raise
                as_tensors(value, name)
            if made:
                return tuple(map(crossing_of, as_tensors(self._arrived(value), self.layers[-1][0])))
            tensors = outputs_of(self._arrived(value), self.layers[-1][0])
            twins = twins_in([t.local if isinstance(t, TileTensor) else t for t in tensors])
            listed = isinstance(value, list)
            return tuple(replace(self._leaving(t)[1], twin=twin, listed=listed) for t, twin in zip(tensors, twins))

    # -- forward -------------------------------------------------------------------------------------------------

    def forward(self, held: Held, step: int, microbatch: int, share: float, grad: bool = True) -> Tensor | None:
        """Run the layers; `held.outputs` becomes what goes on, or on the last stage the loss scaled by `share`.

        Returns the unscaled loss there. `microbatch` is counted over all replicas, for the random numbers.
        """
        held.recorded = grad
        saving = offloaded(self.options.device) if grad and self.options.offload else nullcontext()
        loss = None
        with torch.set_grad_enabled(grad), self._autocast(), saving:
            value = self.value(held, step, microbatch)
            if self.loss is None:
                self._let_go(held, self._arrived(value))
            else:
                target = self.target(held.target, value)
                loss = self._loss_of(value, target)
        if self.loss is not None:
            if not isinstance(loss, Tensor) or isinstance(loss, TileTensor) or loss.ndim:
                said = "it must return one number, the mean over samples"
                raise ValueError(f"the loss returned {describe(loss)}: {said}")
            held.outputs = [loss * share if self.scale is None else loss * share * self.scale]
        if not grad and not self._compared:
            self._compared, held.first = True, [t.clone() for t in held.outputs]
        elif held.first:
            require_same_again(held.first, held.outputs, named(self.layers))
            held.first = []
        if loss is None:
            return None
        if held.measures:
            held.sums, held.measures = sums_of(held.measures, self._arrived(value), target), {}
        return loss.detach()

    def predict(self, held: Held, step: int, microbatch: int) -> tuple[Any, Any]:
        """A forward that nothing follows: `held.outputs` becomes what goes on; returns the last stage's output and its
        target, cut alike."""
        with torch.no_grad(), self._autocast():
            value = self._arrived(self.value(held, step, microbatch))
            if self.loss is None:
                self._let_go(held, value)
                return None, None
            return value, self.target(held.target, value)

    def _let_go(self, held: Held, value: Any) -> None:
        leaving = [self._leaving(t) for t in outputs_of(value, self.layers[-1][0])]
        held.outputs, held.leaving = [t for t, _ in leaving], tuple(crossing for _, crossing in leaving)

    def value(self, held: Held, step: int, microbatch: int) -> Any:
        # What is kept for a recomputation, or is a leaf of the graph, is not to be written to.
        training = any(layer.training for _, layer in self.layers)
        writes = self._writes.get(training)
        given = held.inputs if writes is False else [t.clone() for t in held.inputs]
        tiles = [self._wrap(t, c, self.exchanger) for t, c in zip(given, held.received)]
        value = input_of(tiles, held.received)
        watched: AbstractContextManager[Any] = nullcontext()
        if self._unseen and training:
            from halocline.runtime.parallel.split_randomness import refusing

            self._unseen = False
            watched = refusing(self.layers)
        with watched:
            # Where a write would be refused it must be seen, and not happen to tiles with their halo.
            value = self._through(value, step, microbatch, int(any(c.twin for c in held.received)))
        if writes is None and not torch.is_inference_mode_enabled():  # where nothing counts what is written
            self._writes[training] = any(t._version for t in given)
            require_no_twin(self.layers, [c for t, c in zip(given, held.received) if t._version])
        return value

    def _through(self, value: Any, step: int, microbatch: int, alone: int) -> Any:
        """The layers one after the other; the first `alone` without a halo fetched ahead."""
        for number, (name, layer) in enumerate(self.layers):
            if self.fused and number % self.fused == 0 and number >= alone:
                value = prefetched([layer for _, layer in self.layers[number : number + self.fused]], value)
            seed_randomness(derived_seed(self.options.seed, step, name, microbatch), self.options.device)
            try:
                value = layer(value)
            except Exception as error:
                tell(error, f"layer {name} ({type(layer).__name__})")
                raise
            if not isinstance(value, Tensor) and number + 1 < len(self.layers):
                as_tensors(value, name)  # before the next layer complains of what this one did
        return value

    def _arrived(self, value: Any) -> Any:
        """The same with every tensor whole on every tensor rank."""
        if self.stage.tensor == 1:
            return value
        from halocline.runtime.parallel.tensor_parallel import gathered

        return gathered(value)

    def _loss_of(self, value: Any, target: Any) -> Tensor:
        """The loss; of logits that tensor ranks hold in parts without gathering them, if the loss can do that."""
        assert self.loss is not None
        if is_sharded(value) and self._divided_loss:
            from halocline.runtime.parallel.vocabulary_loss import loss_of_parts

            loss = loss_of_parts(self.loss, value, target)
            if loss is not None:
                return loss
            self._divided_loss = False
        return self.loss(self._arrived(value), target)

    def target(self, target: Any, value: Any) -> Any:
        """The target cut as the prediction is: samples by lane, pixels by tile."""
        first = value[0] if isinstance(value, (tuple, list)) else value
        tiled = isinstance(first, TileTensor) and self.exchanger is not None

        def cut(tensor: Any) -> Any:
            if not isinstance(tensor, (Tensor, Patchwork)):
                return tensor
            crossing = target_crossing(crossing_of(first), tensor.shape, tensor.dtype) if tiled else None
            if crossing is None or not crossing.cuts:
                return tensor.whole() if isinstance(tensor, Patchwork) else tensor
            assert self.exchanger is not None
            part = tensor[tuple(slice(a, b) for a, b in self.origin(crossing))]
            return TileTensor.wrap(part, self.spec(crossing, self.exchanger))

        return tuple(cut(t) for t in target) if isinstance(target, (tuple, list)) else cut(target)

    def _autocast(self) -> AbstractContextManager[Any]:
        if self.options.autocast is None:
            return nullcontext()
        return torch.autocast(self.options.device.type, self.options.autocast)

    # -- backward ------------------------------------------------------------------------------------------------

    def backward(self, held: Held) -> None:
        """Whole backward: parameter gradients accumulate, `held.input_gradients` is filled."""
        roots, gradients = self._roots(held)
        if roots:
            self._told(torch.autograd.backward, roots, gradients)
        held.input_gradients = self._shares([t.grad for t in held.inputs], held)
        held.outputs, held.gradients = [], []  # whatever is still on its way is kept by its sender

    def backward_input(self, held: Held) -> None:
        """The half that the stage above waits for."""
        roots, gradients = self._roots(held)
        parameters = [p for p in parameters_of(self.layers) if p.requires_grad]
        found, held.branches = self._told(input_half, roots, gradients, held.inputs, parameters)
        held.input_gradients = self._shares(found, held)

    def backward_weight(self, held: Held) -> None:
        """The other half: parameter gradients accumulate."""
        self._told(weight_half, held.branches)
        held.outputs, held.gradients, held.branches = [], [], []

    def _told(self, run: Callable[..., Any], *args: Any) -> Any:
        try:
            return run(*args)
        except RuntimeError as error:
            tell(error, named(self.layers), ", in a backward")
            raise

    # Between stages, what a team holds whole on every rank has a gradient that is the sum of what its ranks are sent:
    # whoever sent it, and to however many.

    def _shares(self, gradients: list[Tensor | None], held: Held) -> list[Tensor | None]:
        """The gradients of the inputs, of which each rank sends back its share where all have the whole."""
        if self.exchanger is None:
            return gradients
        return [g if g is None or c.cuts else g / self.exchanger.size for g, c in zip(gradients, held.received)]

    def _roots(self, held: Held) -> tuple[list[Tensor], list[Tensor | None]]:
        pairs = []
        for number, output in enumerate(held.outputs):
            if not output.requires_grad:
                continue
            gradient = held.gradients[number] if held.gradients else None
            if gradient is None and self.loss is None:
                continue  # nobody used it, for any rank of the team
            if self.exchanger is not None and self.loss is None and not held.leaving[number].cuts:
                assert gradient is not None
                gradient = self.exchanger.all_reduce(gradient.clone(memory_format=torch.contiguous_format))
            pairs.append((output, gradient))
        return [a for a, _ in pairs], [b for _, b in pairs]
