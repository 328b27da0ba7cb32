#!/usr/bin/env python
"""How long a halo exchange takes, forward and backward, and that every pixel arrives.

torchrun --nproc-per-node 4 benchmarks/communication/halo/benchmark_sp_halo_exchange.py --image-size 512
"""

from halo import Tiles, arguments, both_ways, start, table, validate

from halocline.tiling.tensor import TileTensor


def main() -> None:
    given = arguments(__doc__.splitlines()[0])
    world = start(given)
    tiles = Tiles.make(world, given)
    spec = tiles.tile().spec
    held = tiles.fetch(tiles.tile())
    rows, columns = held.spec.held
    validate(world, "the tile with its halo", held.local, tiles.image[..., slice(*rows), slice(*columns)], 0)
    print(f"Validation passed Rank:{world.rank}\n", end="", flush=True)
    leaf = tiles.tile().local.requires_grad_()
    forward, backward = both_ways(lambda: tiles.fetch(TileTensor.wrap(leaf, spec)).local, world, given)
    print(f"Rank:{world.rank} Time taken (ms):{forward:.4f}\n", end="", flush=True)
    print(f"Rank:{world.rank} Time taken by the backward (ms):{backward:.4f}\n", end="", flush=True)
    table(world, given, compute=False)
    world.close()


if __name__ == "__main__":
    main()
