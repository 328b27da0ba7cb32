#!/usr/bin/env python
"""The same as benchmark_sp_halo_exchange_with_compute.py, after its result was held against one device.

torchrun --nproc-per-node 4 benchmarks/communication/halo/benchmark_sp_halo_exchange_with_compute_val.py
"""

from benchmark_sp_halo_exchange_with_compute import main

if __name__ == "__main__":
    main(validated=True)
