"""Several ranks on one GPU over ipc and staged: run where there is a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[3]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_steps_on_one_gpu_equal_one_device() -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    script = [sys.executable, str(ROOT / "benchmarks" / "gpu_transport.py"), "--ranks", "4"]
    out = subprocess.run(script, env=env, capture_output=True, text=True, timeout=300)
    assert out.returncode == 0 and "all exact" in out.stdout, out.stdout + out.stderr
    assert "automatic choice: ipc" in out.stdout
