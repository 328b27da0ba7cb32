#!/usr/bin/env python
"""ResNet-110-v2 on tiles in two mirrored pipes (GEMS-MASTER + SP), with now-dl's flags.

    torchrun --nproc-per-node 8 benchmarks/gems_master_with_spatial_parallelism/\
    benchmark_resnet_gems_master_with_sp.py --split-size 5
"""

from halocline.cli.nowdl import main

if __name__ == "__main__":
    main("resnet-v2-110", spatial=True, gems=True)
