#!/usr/bin/env python
"""AmoebaNet-D in two mirrored pipes (GEMS-MASTER), with now-dl's flags.

torchrun --nproc-per-node 4 benchmarks/gems_master_model/benchmark_amoebanet_gems_master.py --split-size 4 --times 2
"""

from halocline.cli.nowdl import main

if __name__ == "__main__":
    main("amoebanet-d", gems=True)
