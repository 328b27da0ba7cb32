#!/usr/bin/env python
"""How much of a halo exchange a convolution hides when both run at the same time, against one after the other.

torchrun --nproc-per-node 4 benchmarks/communication/halo/benchmark_sp_halo_exchange_with_compute.py
"""

from halo import Tiles, arguments, milliseconds, overlap_times, start, table


def main(validated: bool = False) -> None:
    given = arguments(__doc__.splitlines()[0])
    world = start(given)
    if validated:
        from benchmark_sp_halo_exchange_conv import check

        tiles = Tiles.make(world, given)
        check(tiles, tiles.convolution(given.out_channels), world, ones=False)
        print(f"Validation passed Rank:{world.rank}\n", end="", flush=True)
    tiles = Tiles.make(world, given)
    tile = tiles.tile()
    exchange = milliseconds(lambda: tiles.fetch(tile), world, given.warmup, given.iterations)
    compute, sequence, beside, hidden = overlap_times(tiles, world, given, exchange)
    print(f"Rank:{world.rank} Time taken (ms):{beside:.4f}\n", end="", flush=True)
    print(f"Rank:{world.rank} Sequential time taken (ms):{sequence:.4f}\n", end="", flush=True)
    if world.rank == 0:
        print(f"compute alone {compute:.4f} ms, exchange alone {exchange:.4f} ms, {hidden:.0%} of the exchange hidden")
    table(world, given, compute=True)
    world.close()


if __name__ == "__main__":
    main()
