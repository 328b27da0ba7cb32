"""Torch without mkldnn, for tests in bfloat16."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture
def without_mkldnn() -> Iterator[None]:
    """Mkldnn's bfloat16 backward of a strided convolution stops some CPUs with an illegal instruction, tiled or not."""
    torch._C._set_mkldnn_enabled(False)
    yield
    torch._C._set_mkldnn_enabled(True)
