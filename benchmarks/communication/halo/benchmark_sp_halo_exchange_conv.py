#!/usr/bin/env python
"""A convolution on tiles, halo exchange included: its time, and its parts held against one device.

torchrun --nproc-per-node 4 benchmarks/communication/halo/benchmark_sp_halo_exchange_conv.py --enable-val-conv --CPU
"""

import torch
from halo import Tiles, arguments, both_ways, start, table, validate

from halocline.tiling.tensor import TileTensor

SWITCHES = (
    ("--enable-val-recv-tensors", "check the pixels that arrive"),
    ("--enable-val-conv", "check the convolution's output and gradients against one device"),
    ("--enable-val-small-conv", "the same with weights of one, whose result is a sum of pixels"),
    ("--enable-deterministic", "only deterministic algorithms"),
    ("--enable-one-h-dim-kernel", "a kernel that is one pixel high"),
    ("--enable-one-w-dim-kernel", "a kernel that is one pixel wide"),
    ("--CPU", "on the CPU, whatever the machine has"),
)


def main() -> None:
    given = arguments(__doc__.splitlines()[0], *SWITCHES)
    torch.use_deterministic_algorithms(given.enable_deterministic)
    world = start(given)
    tiles = Tiles.make(world, given)
    reach = 2 * given.halo_len + 1
    kernel = (1 if given.enable_one_h_dim_kernel else reach, 1 if given.enable_one_w_dim_kernel else reach)
    conv = tiles.convolution(given.out_channels, kernel)
    if given.enable_val_recv_tensors:
        held = tiles.fetch(tiles.tile())
        rows, columns = held.spec.held
        validate(world, "the tile with its halo", held.local, tiles.image[..., slice(*rows), slice(*columns)], 0)
    if given.enable_val_conv or given.enable_val_small_conv:
        check(tiles, conv, world, ones=given.enable_val_small_conv)
    if given.enable_val_recv_tensors or given.enable_val_conv or given.enable_val_small_conv:
        print(f"Validation passed Rank:{world.rank}\n", end="", flush=True)
    leaf, spec = tiles.tile().local.requires_grad_(), tiles.tile().spec
    forward, backward = both_ways(lambda: conv(TileTensor.wrap(leaf, spec)).local, world, given)
    print(f"Rank:{world.rank} Time taken (ms):{forward:.4f}\n", end="", flush=True)
    print(f"Rank:{world.rank} Time taken by the backward (ms):{backward:.4f}\n", end="", flush=True)
    table(world, given, compute=True)
    world.close()


def check(tiles: Tiles, conv: torch.nn.Conv2d, world, ones: bool) -> None:
    """Output and input gradient of this rank's tile against the convolution of the whole image."""
    exact = torch.nn.Conv2d(conv.in_channels, conv.out_channels, conv.kernel_size, padding=conv.padding).double()
    exact = exact.to(world.device)
    if ones:
        for parameter in exact.parameters():
            torch.nn.init.ones_(parameter)
    else:
        exact.load_state_dict(conv.state_dict())
    whole = tiles.image.double().requires_grad_()
    expected = exact(whole)
    expected.square().sum().backward()
    tile = Tiles(world, tiles.image.double(), tiles.grid, tiles.halo).tile()
    leaf = tile.local.detach().requires_grad_()
    made = exact(TileTensor.wrap(leaf, tile.spec))
    made.local.square().sum().backward()
    for what, ours, theirs, box in (
        ("the output", made.local, expected, made.spec.box),
        ("the input's gradient", leaf.grad, whole.grad, tile.spec.box),
    ):
        part = theirs[..., slice(*box[0]), slice(*box[1])].detach()
        validate(world, what, ours.detach(), part, 1e-10 * max(1.0, float(theirs.detach().abs().max())))


if __name__ == "__main__":
    main()
