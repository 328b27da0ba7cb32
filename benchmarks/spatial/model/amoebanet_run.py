#!/usr/bin/env python
"""AmoebaNet-D on tiles and stages: now-dl's README names this script by this path.

torchrun --nproc-per-node 5 benchmarks/spatial/model/amoebanet_run.py --image-size 512 --batch-size 2
"""

from halocline.cli.nowdl import main

if __name__ == "__main__":
    main("amoebanet-d", spatial=True)
