"""Models of Hugging Face transformers that tiles are tried on, small and with random weights; nothing is downloaded.

`test_models.py` holds each to what it says here; the table of models in docs/tiling.md is made of them. Nothing drops
out, as ranks that are threads of one process share one generator of random numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

FOUR = {"hidden_sizes": [8, 8, 16, 16], "depths": [1, 1, 2, 1]}
"""Four stages of few channels."""
HEADS = {"num_attention_heads": [1, 1, 2, 2], "hidden_dropout_prob": 0.0, "drop_path_rate": 0.0}
PATCHES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
NO_DROP = {"drop_path_rate": 0.0}


@dataclass(frozen=True)
class Entry:
    """A model: its classes by name, so that looking at the table imports nothing, and its configuration."""

    model: str
    config: str
    settings: Callable[[], dict]
    note: str = ""
    size: tuple[int, int] = (64, 64)
    channels: int = 3

    def build(self) -> nn.Module:
        import transformers

        config = getattr(transformers, self.config)(**self.settings())
        return getattr(transformers, self.model)(config).train()


def _entry(name: str, model: str, note: str = "", **settings: object) -> Entry:
    """`name` names the configuration and the model: ResNet and ForImageClassification."""
    size = settings.pop("size", (64, 64))
    channels = settings.pop("channels", 3)
    assert isinstance(size, tuple) and isinstance(channels, int)
    return Entry(f"{name}{model}", f"{name}Config", lambda: settings, note, size, channels)


def _upernet() -> dict:
    import transformers

    backbone = transformers.ConvNextConfig(**FOUR, out_features=["stage1", "stage2", "stage3", "stage4"])
    return {
        "backbone_config": backbone,
        "hidden_size": 16,
        "auxiliary_in_channels": 16,
        "auxiliary_channels": 8,
        "pool_scales": [1, 2],
    }


def _matting() -> dict:
    import transformers

    backbone = transformers.VitDetConfig(
        image_size=64,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_channels=4,
        out_features=["stage2"],
    )
    sizes = {"convstream_hidden_sizes": [8, 8, 8], "fusion_hidden_sizes": [8, 8, 8, 8]}
    return {"backbone_config": backbone, "hidden_size": 16, **sizes}


ODD = (65, 49)
CLASSIFIER, SEGMENTER = "ForImageClassification", "ForSemanticSegmentation"
GATHERED = "pixels become a sequence: whole on every rank from there"
MOBILE = {"depth_multiplier": 0.25, "depth_divisible_by": 4, "min_depth": 4, "classifier_dropout_prob": 0.0}

ENTRIES: dict[str, Entry] = {
    "ResNet (basic)": _entry("ResNet", CLASSIFIER, embedding_size=8, **FOUR, layer_type="basic", size=ODD),
    "ResNet (bottleneck)": _entry(
        "ResNet", CLASSIFIER, embedding_size=8, hidden_sizes=[16, 16, 32, 32], depths=[1, 2, 1, 1], size=ODD
    ),
    "ConvNeXt": _entry("ConvNext", CLASSIFIER, **FOUR, size=ODD),
    "ConvNeXt V2": _entry("ConvNextV2", CLASSIFIER, **FOUR, size=ODD),
    "DINOv3 ConvNeXt": _entry("DINOv3ConvNext", "Model", **FOUR, size=ODD),
    "RegNet (y)": _entry("RegNet", CLASSIFIER, embedding_size=8, **FOUR, groups_width=4, layer_type="y", size=ODD),
    "RegNet (x)": _entry("RegNet", CLASSIFIER, embedding_size=8, **FOUR, groups_width=4, layer_type="x", size=ODD),
    "MobileNet V1": _entry("MobileNetV1", CLASSIFIER, depth_multiplier=0.25, classifier_dropout_prob=0.0, size=ODD),
    "MobileNet V2": _entry("MobileNetV2", CLASSIFIER, **MOBILE, size=ODD),
    "MobileNet V2 + DeepLab V3": _entry("MobileNetV2", SEGMENTER, **MOBILE, size=ODD),
    "EfficientNet": _entry(
        "EfficientNet",
        CLASSIFIER,
        width_coefficient=0.25,
        depth_coefficient=0.3,
        hidden_dim=320,
        dropout_rate=0.0,
        drop_connect_rate=0.0,
        size=ODD,
    ),
    "BiT (pre-activation)": _entry("Bit", CLASSIFIER, embedding_size=8, **FOUR, num_groups=4, size=ODD),
    "BiT (bottleneck)": _entry(
        "Bit",
        CLASSIFIER,
        embedding_size=8,
        hidden_sizes=[16, 16, 32, 32],
        depths=[1, 1, 1, 1],
        layer_type="bottleneck",
        num_groups=2,
        global_padding="same",
        size=ODD,
    ),
    "HGNet V2": _entry(
        "HGNetV2",
        CLASSIFIER,
        embedding_size=8,
        hidden_sizes=[8, 16, 16, 32],
        depths=[1, 1, 1, 1],
        stem_channels=[3, 8, 8],
        stage_in_channels=[8, 8, 16, 16],
        stage_mid_channels=[4, 4, 4, 4],
        stage_out_channels=[8, 16, 16, 32],
        stage_num_blocks=[1, 1, 1, 1],
        stage_numb_of_layers=[2, 2, 2, 2],
        size=ODD,
    ),
    "TextNet": _entry("TextNet", CLASSIFIER, stem_out_channels=8, hidden_sizes=[8, 8, 16, 16, 16], size=ODD),
    "PoolFormer": _entry("PoolFormer", CLASSIFIER, **FOUR, **NO_DROP, size=ODD),
    "FocalNet": _entry("FocalNet", CLASSIFIER, GATHERED, image_size=64, embed_dim=8, depths=[1, 1, 1, 1], **NO_DROP),
    "UPerNet on ConvNeXt": Entry("UperNetForSemanticSegmentation", "UperNetConfig", _upernet, size=ODD),
    "SegFormer": _entry(
        "Segformer",
        SEGMENTER,
        GATHERED,
        **FOUR,
        **HEADS,
        decoder_hidden_size=16,
        attention_probs_dropout_prob=0.0,
        classifier_dropout_prob=0.0,
    ),
    "GLPN": _entry(
        "GLPN", "ForDepthEstimation", GATHERED, **FOUR, **HEADS, decoder_hidden_size=8, attention_probs_dropout_prob=0.0
    ),
    "PVT": _entry("Pvt", CLASSIFIER, GATHERED, image_size=64, **FOUR, **HEADS),
    "PVT V2": _entry("PvtV2", CLASSIFIER, GATHERED, image_size=64, **FOUR, **HEADS),
    "CvT": _entry(
        "Cvt",
        CLASSIFIER,
        GATHERED,
        embed_dim=[8, 16, 16],
        num_heads=[1, 2, 2],
        depth=[1, 2, 3],
        drop_rate=[0.0] * 3,
        drop_path_rate=[0.0] * 3,
        attention_drop_rate=[0.0] * 3,
    ),
    "LeViT": _entry(
        "Levit",
        CLASSIFIER,
        GATHERED,
        image_size=64,
        hidden_sizes=[16, 16, 16],
        num_attention_heads=[2, 2, 2],
        depths=[1, 1, 1],
        key_dim=[4, 4, 4],
    ),
    "MobileViT": _entry(
        "MobileViT",
        CLASSIFIER,
        GATHERED,
        image_size=64,
        hidden_sizes=[8, 8, 8],
        neck_hidden_sizes=[4, 4, 4, 8, 8, 8, 16],
        hidden_dropout_prob=0.0,
        classifier_dropout_prob=0.0,
    ),
    "MobileViT V2": _entry(
        "MobileViTV2", CLASSIFIER, GATHERED, image_size=64, width_multiplier=0.125, attn_dropout=0.0, ffn_dropout=0.0
    ),
    "SwiftFormer": _entry(
        "SwiftFormer",
        CLASSIFIER,
        GATHERED,
        image_size=64,
        embed_dims=[8, 8, 16, 16],
        depths=[1, 1, 1, 1],
        **NO_DROP,
        drop_conv_encoder_rate=0.0,
    ),
    "Swin": _entry(
        "Swin",
        CLASSIFIER,
        GATHERED,
        image_size=64,
        embed_dim=8,
        depths=[1, 1],
        num_heads=[1, 2],
        window_size=4,
        **NO_DROP,
    ),
    "Swin V2": _entry(
        "Swinv2",
        CLASSIFIER,
        GATHERED,
        image_size=64,
        embed_dim=8,
        depths=[1, 1],
        num_heads=[1, 2],
        window_size=4,
        **NO_DROP,
    ),
    "Swin2SR": _entry(
        "Swin2SR",
        "ForImageSuperResolution",
        GATHERED,
        image_size=32,
        embed_dim=8,
        depths=[1],
        num_heads=[2],
        window_size=4,
        upscale=2,
        **NO_DROP,
        size=(32, 32),
    ),
    "Hiera": _entry(
        "Hiera",
        CLASSIFIER,
        GATHERED,
        image_size=[64, 64],
        embed_dim=8,
        depths=[1, 1, 1, 1],
        num_heads=[1, 1, 2, 2],
        **NO_DROP,
    ),
    "ViT": _entry("ViT", CLASSIFIER, GATHERED, image_size=64, **PATCHES),
    "BEiT": _entry("Beit", CLASSIFIER, GATHERED, image_size=64, **PATCHES, **NO_DROP),
    "Data2Vec": _entry("Data2VecVision", CLASSIFIER, GATHERED, image_size=64, **PATCHES, **NO_DROP),
    "ViTDet": _entry(
        "VitDet",
        "Model",
        GATHERED,
        image_size=64,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        **NO_DROP,
    ),
    "ViTMatte": Entry("VitMatteForImageMatting", "VitMatteConfig", _matting, GATHERED, channels=4),
    "DPT": _entry(
        "DPT",
        "ForDepthEstimation",
        GATHERED,
        image_size=64,
        hidden_size=16,
        num_hidden_layers=4,
        num_attention_heads=2,
        intermediate_size=32,
        backbone_out_indices=[0, 1, 2, 3],
        neck_hidden_sizes=[8, 8, 8, 8],
        fusion_hidden_size=8,
    ),
    "SuperPoint": Entry(
        "SuperPointForKeypointDetection",
        "SuperPointConfig",
        lambda: {"encoder_hidden_sizes": [8] * 4, "decoder_hidden_size": 8, "descriptor_decoder_dim": 8},
        "gathers where it looks for keypoints",
    ),
}
