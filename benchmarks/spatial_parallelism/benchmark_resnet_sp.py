#!/usr/bin/env python
"""ResNet-110-v2 on tiles and stages, with now-dl's flags.

torchrun --nproc-per-node 5 benchmarks/spatial_parallelism/benchmark_resnet_sp.py --image-size 512 --batch-size 2
"""

from halocline.cli.nowdl import main

if __name__ == "__main__":
    main("resnet-v2-110", spatial=True)
