#!/usr/bin/env python
"""AmoebaNet-D on tiles and stages, with now-dl's flags.

torchrun --nproc-per-node 5 benchmarks/spatial_parallelism/benchmark_amoebanet_sp.py --image-size 512 --batch-size 2
"""

from halocline.cli.nowdl import main

if __name__ == "__main__":
    main("amoebanet-d", spatial=True)
