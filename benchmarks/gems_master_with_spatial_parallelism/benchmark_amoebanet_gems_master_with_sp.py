#!/usr/bin/env python
"""AmoebaNet-D on tiles in two mirrored pipes (GEMS-MASTER + SP), with now-dl's flags.

    torchrun --nproc-per-node 8 benchmarks/gems_master_with_spatial_parallelism/\
    benchmark_amoebanet_gems_master_with_sp.py --split-size 5
"""

from halocline.cli.nowdl import main

if __name__ == "__main__":
    main("amoebanet-d", spatial=True, gems=True)
