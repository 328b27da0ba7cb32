"""What runs on each rank of the transport tests."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from halocline.runtime import World
from halocline.runtime.transports.ipc import Ipc
from harness.checks.plans import compare

PLANS = {
    "pipeline": (
        "cnn",
        """microbatches = 4
        schedule = "1f1b"
        stages = [{layers = [0, 2]}, {layers = [2, 4]}, {layers = [4, 6]}, {layers = [6, 8]}]""",
    ),
    "tiles": ("cnn", "microbatches = 2\nstages = [{layers = [0, 8], tiles = [2, 2]}]"),
    "tiles into one": (
        "cnn",
        """microbatches = 2
        schedule = "gpipe"
        stages = [{layers = [0, 5], tiles = [1, 3]}, {layers = [5, 8]}]""",
    ),
    "two pipes, pairs": (
        "pairs",
        """microbatches = 4
        schedule = "gems"
        pipes = 2
        stages = [{layers = [0, 2]}, {layers = [2, 4]}, {layers = [4, 6]}, {layers = [6, 8]}]""",
    ),
    "replicas, zero bubble": (
        "mlp",
        """microbatches = 3
        replicas = 2
        schedule = "zb-h1"
        stages = [{layers = [0, 4]}, {layers = [4, 8]}]""",
    ),
}
LONG = timedelta(seconds=300)


def exactness(transport: str) -> dict[str, float]:
    world = World.join(deadline=300, transport=transport)
    assert world.transport is not None and world.transport.name == transport
    found = {name: max(compare(model, plan, [8, 6], world=world).values()) for name, (model, plan) in PLANS.items()}
    world.transport.close()
    return found


def storm(transport: str) -> bool:
    """Many messages of many sizes between all pairs, waited for in another order than they were sent."""
    world = World.join(deadline=300, transport=transport)
    assert world.transport is not None
    sizes = [1, 70_000, 3, 1 << 20, 17, 70_001] * 4
    for round_ in range(3):
        handles: list[Any] = []
        arrived = []
        peers = [p for p in range(world.size) if p != world.rank]
        for number, size in enumerate(sizes):
            for peer in sorted(peers):
                receive = world.receive(size, peer, number)
                send = world.send(_content(world.rank, peer, number + round_, size), peer, number)
                # A pair agrees on an order: the lower rank's message comes first.
                arrived.append((peer, number + round_, size, *receive))
                handles.append(send)
        for peer, number, size, message, handle in reversed(arrived):
            world.wait(handle, f"storm {number} from {peer}", peer)
            assert torch.equal(message, _content(peer, world.rank, number, size)), (peer, number)
        for handle in handles:
            world.wait(handle, "storm")
    world.transport.close()
    return True


def left_behind() -> list[str]:
    """The files in memory that are still there when all have left. Other runs have theirs in the same place."""
    world = World.join(deadline=300, transport="ipc")
    transport = world.transport
    assert isinstance(transport, Ipc)
    made: list[str] = []
    make_slot = transport.make_slot

    def noted(capacity: int) -> Any:
        slot, announcement = make_slot(capacity)
        made.append(announcement[0])
        return slot, announcement

    transport.make_slot = noted  # type: ignore[method-assign]
    peers = [p for p in range(world.size) if p != world.rank]
    waits = [world.receive(70_000, peer, "a")[1] for peer in peers]
    waits += [world.send(torch.zeros(70_000, dtype=torch.uint8), peer, "a") for peer in peers]
    for handle in waits:
        world.wait(handle, "files")
    assert len(made) == len(peers)
    transport.close()
    dist.barrier()
    return [path for path in (*made, *map(str, transport.directory.glob(f"{transport._stem}*"))) if Path(path).exists()]


def _content(source: int, target: int, number: int, size: int) -> torch.Tensor:
    return (torch.arange(size) * 31 + source * 7 + target * 3 + number).to(torch.uint8)


def wrong_order() -> str:
    """Rank 0 sends a, b; rank 1 expects b, a."""
    world = World.join(deadline=300, transport="strict")
    names = ["a", "b"] if world.rank == 0 else ["b", "a"]
    message = torch.zeros(4, dtype=torch.uint8)
    return _refusal(world, lambda: [_pass(world, message, name) for name in names])


def wrong_direction() -> str:
    """Both send first and receive then: gloo's buffers hide it, NCCL hangs."""
    world = World.join(deadline=300, transport="strict")
    assert world.transport is not None
    if world.rank > 1:
        return ""
    peer = 1 - world.rank
    sent = world.send(torch.zeros(4, dtype=torch.uint8), peer, "x")
    _, handle = world.receive(4, peer, "x")
    try:
        handle.wait(timedelta(seconds=2))
    except RuntimeError as error:
        return f"never came: {type(error).__name__}"
    sent.wait(LONG)
    return "came"


def wrong_size() -> str:
    world = World.join(deadline=300, transport="strict")
    return _refusal(world, lambda: _pass(world, torch.zeros(4 + world.rank, dtype=torch.uint8), "a"))


def not_contiguous() -> str:
    world = World.join(deadline=300, transport="strict")
    return _refusal(world, lambda: world.send(torch.zeros(4, 4).t(), (world.rank + 1) % world.size, "a"))


def wrong_collectives() -> str:
    """Ranks 0 and 1 sum in two groups, in different orders."""
    world = World.join(deadline=300, transport="strict")
    world.make_groups([(0, 1), (0, 1, 2)])
    groups = [(0, 1), (0, 1, 2)] if world.rank == 0 else [(0, 1, 2), (0, 1)]
    groups = [g for g in groups if world.rank in g]

    def act() -> None:
        handles = [world.start_sum(torch.zeros(3), group, f"of {group}") for group in groups]
        _SENT.extend(handles)
        for handle in handles:
            handle.wait(LONG)

    return _refusal(world, act) if world.rank < 2 else ""


def wrong_sums() -> str:
    world = World.join(deadline=300, transport="strict")
    return _refusal(world, lambda: world.sum(torch.zeros(3 + (world.rank == 1)), label="total"))


_SENT: list[Any] = []
"""What nobody will ever take must live on: gloo drops a message whose sender has forgotten it."""


def _pass(world: World, message: torch.Tensor, name: str) -> None:
    """From rank 0 to rank 1."""
    if world.rank == 0:
        _SENT.append(world.send(message, 1, name))
    elif world.rank == 1:
        _, handle = world.receive(message.numel(), 0, name)
        world.wait(handle, "test", 0)


def _refusal(world: World, act: Any) -> str:
    try:
        act()
    except ValueError as error:
        return str(error)
    return ""


def late(transport: str) -> str:
    """Rank 1 waits for a message that rank 0 never sends, and says so."""
    world = World.join(deadline=1.5, transport=transport)
    if world.rank != 1:
        return ""
    _, handle = world.receive(4, 0, "a")
    try:
        world.wait(handle, "rank 1 waits in forward p0 s1 m0 for activation p0 s0 m0 from rank 0", 0)
    except RuntimeError as error:
        return f"{type(error).__name__}: {error}"
    return "came"


def gathered() -> list[float]:
    """Sums and gathers of a tile exchanger over ipc are gloo's own."""
    world = World.join(deadline=300, transport="ipc")
    world.make_groups([tuple(range(world.size))])
    exchanger = world.exchanger(tuple(range(world.size)))
    total = exchanger.all_reduce(torch.tensor([float(world.rank)]))
    parts = exchanger.all_gather(torch.tensor([float(world.rank)]))
    assert world.transport is not None
    world.transport.close()
    dist.barrier()
    return [*total.tolist(), *(p.item() for p in parts)]
