#!/usr/bin/env python
"""AmoebaNet-D in stages, layer by layer or as a pipeline, with now-dl's flags.

torchrun --nproc-per-node 4 benchmarks/layer_parallelism/benchmark_amoebanet_lp.py --split-size 4 --parts 4
"""

from halocline.cli.nowdl import main

if __name__ == "__main__":
    main("amoebanet-d")
