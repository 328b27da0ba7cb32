"""Models of torchvision, where it is installed: exact on tiles. benchmarks/tiling_models.py tries many more."""

import pytest
import torch

from harness.ranks import assert_exact

torchvision = pytest.importorskip("torchvision", reason="torchvision is not installed")
pytestmark = pytest.mark.filterwarnings("ignore")  # torchvision's own


@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v2", "shufflenet_v2_x0_5", "squeezenet1_1", "densenet121"])
def test_equals_one_device(name: str) -> None:
    torch.manual_seed(0)
    model = getattr(torchvision.models, name)(weights=None).train()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0  # ranks that are threads share one generator of random numbers
    assert_exact(model, (2, 3, 65, 49), cuts=[[0, 39, 65], [0, 19, 49]], tolerance=1e-10)
