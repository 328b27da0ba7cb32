"""The models and losses of other libraries that benchmarks/tiling_models.py tries, and what they are given.

A case is an expression in the names of its library, which is also what it is called in the tables, and the words for
its inputs: `image` or `image:64x64` first, then targets of the same size. Knows nothing of tiles.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from peer_blocks import BLOCKS
from torch import Tensor

SIZES = {"volume": ("17x25x13", "33x25x29", "32x32x32"), "video": ("5x33x25", "8x32x32"), "sequence": ("97",)}
OTHER_SIZES = ("65x49", "97x95", "96x128", "224x224", "256x256")
"""What is tried in turn for a word without a size; the first that one device can take counts."""
SIZES_OF_ONE = ("161x129", *OTHER_SIZES[2:])
"""The same for a batch of one: a norm over the two pixels that a small image ends in is ill-conditioned."""
CHANNELS = {
    "image": 3,
    "gray": 1,
    "volume": 1,
    "video": 3,
    "sequence": 2,
    "logits": 4,
    "logit": 1,
    "flow": 2,
    "latent": 4,
    "features": 8,
    "feature_volume": 8,
}
LOSS_SIZE = ":23x19"


@dataclass(frozen=True)
class Family:
    name: str
    library: str
    called: str
    """The expression, with {} for the name of a case."""
    cases: dict[str, str]
    """Words for the inputs -> names, separated by `;` (or by blanks, if they are no calls)."""
    batch: int = 2
    channels_last: bool = False
    plain_targets: bool = False


@dataclass(frozen=True)
class Case:
    family: Family
    name: str
    words: str

    @property
    def key(self) -> str:
        """What it is called among results: a name may be tried on an image and on a volume."""
        return f"{self.words} | {self.name}"

    @property
    def batch(self) -> int:
        return self.family.batch

    @property
    def channels_last(self) -> bool:
        return self.family.channels_last

    @property
    def plain_targets(self) -> bool:
        return self.family.plain_targets

    def build(self, inputs: list[Tensor]) -> Any:
        library = importlib.import_module(self.family.library)
        expression = self.family.called.format(self.name)
        # Some libraries load a name when it is asked for.
        names = {n: getattr(library, n) for n in re.findall(r"[A-Za-z_]\w*", expression) if hasattr(library, n)}
        return eval(expression, {**names, "torch": torch, "size": inputs[0].shape[2:]})

    def inputs(self, dtype: torch.dtype) -> Iterator[list[Tensor]]:
        """Inputs of one size after the other."""
        first, _, size = self.words.split()[0].partition(":")
        words = [w.partition(":")[0] for w in self.words.split()]
        for chosen in (size,) if size else SIZES.get(first, SIZES_OF_ONE if self.batch == 1 else OTHER_SIZES):
            shape = [int(n) for n in chosen.split("x")]
            made = [_input(w, self.batch, shape, k) for k, w in enumerate(words)]
            yield [t.to(dtype) if t.is_floating_point() else t for t in made]


def _input(word: str, batch: int, size: list[int], salt: int) -> Tensor:
    chance = torch.Generator().manual_seed(salt)
    if word == "time":
        return torch.arange(3, 3 + batch)
    if word == "tokens":
        return torch.randn(batch, 5, 8, generator=chance, dtype=torch.float64)
    classes = torch.randint(0, 4, (batch, *size), generator=chance)
    if word == "classes":
        return classes
    if word in ("index", "labels"):
        return classes.unsqueeze(1).double() if word == "index" else classes.unsqueeze(1)
    if word == "hot":
        return F.one_hot(classes, 4).movedim(-1, 1).double()
    if word == "mask":
        return (classes > 1).unsqueeze(1).double()
    if word == "binary":
        return (classes > 1).long()
    if word == "masks":
        return torch.randint(0, 2, (batch, 4, *size), generator=chance).double()
    picture = torch.randn(batch, CHANNELS[word.rstrip("01")], *size, generator=chance, dtype=torch.float64)
    if word.endswith("01"):  # between 0 and 1; of several classes, adding up to 1
        return picture.softmax(1) if word.startswith("logits") else picture.sigmoid()
    return picture


def cases(family: Family) -> list[Case]:
    return [
        Case(family, " ".join(name.split()), words)
        for words, names in family.cases.items()
        for name in (names.split(";") if {";", "("} & set(names) else names.split())
        if name.strip()
    ]


TORCHVISION = {
    "image": """resnet18 resnet50 resnext50_32x4d wide_resnet50_2 densenet121 squeezenet1_1 mobilenet_v2
        mobilenet_v3_small mobilenet_v3_large mnasnet0_5 shufflenet_v2_x0_5 efficientnet_b0 efficientnet_v2_s
        regnet_y_400mf regnet_x_400mf convnext_tiny""",
    "image:97x95": "googlenet",
    "image:64x64": "swin_t swin_v2_t",
    "image:224x224": "maxvit_t",
    "video": "video.r3d_18 video.mc3_18 video.r2plus1d_18",
    "video:8x64x64": "video.swin3d_t",
}
TIMM = """botnet26t_256 coat_lite_tiny coatnet_nano_rw_224 coatnet_pico_rw_224 convit_tiny convmixer_768_32
    convnext_atto_ols convnextv2_atto cpubone_nano crossvit_tiny_240 cs3darknet_focus_s csatv2 darknet17 davit_tiny
    deit_tiny_patch16_224 densenet121 dla34 dla46x_c dpn48b eca_botnext26ts_256 ecaresnet26t edgenext_x_small
    edgenext_xx_small efficientformer_l1 efficientformerv2_s0 efficientnet_cc_b0_4e efficientvim_m1 efficientvit_b0
    efficientvit_b1 efficientvit_m0 ese_vovnet19b_dw ese_vovnet19b_slim_dw eva02_tiny_patch14_224 fasternet_t0
    fastvit_sa12 fastvit_t8 fbnetc_100 focalnet_tiny_srf gcresnet33ts gcresnext26ts gcvit_xxtiny gernet_s
    ghostnet_050 ghostnet_100 ghostnetv2_100 gmlp_ti16_224 halonet26t halonet_h1 hardcorenas_b hgnet_tiny hgnetv2_b0
    hrnet_w18_small hrnet_w18_small_v2 iformer_t inception_next_atto lambda_resnet26t lcnet_050
    lcnetv2_small legacy_seresnet18 levit_conv_128s lowformer_b0 mixer_s32_224 mixnet_s mnasnet_small 
    mobilenetv2_035 mobilenetv3_small_050 mobilenetv4_conv_small mobileone_s0 mobilevit_xxs mobilevitv2_050
    mvitv2_tiny nfnet_l0 pit_ti_224 poolformer_s12 pvt_v2_b0 regnetx_002 regnety_002 regnetz_b16 repghostnet_050
    repvgg_a0 repvit_m1 res2net50_14w_8s resnest14d resnet10t resnet18 resnet26t resnetblur50 resnetv2_18d
    resnext26ts sequencer2d_s seresnet18 shvit_s1 skresnet18 spnasnet_100 starnet_s050 swiftformer_xs
    swin_tiny_patch4_window7_224 test_byobnet test_convnext2 test_efficientnet_evos test_efficientnet_gn
    test_mambaout test_nfnet test_resnet tf_efficientnet_b0 tiny_vit_5m_224 tinynet_e tnt_s_legacy_patch16_224
    twins_pcpvt_small visformer_tiny vit_tiny_patch16_224 vit_tiny_patch16_dinov3_qkvb vovnet39a xception41
    xcit_nano_12_p16_224"""
ENCODERS = ("resnet18", "efficientnet-b0", "mit_b0", "mobilenet_v2")
DECODERS = "Unet UnetPlusPlus MAnet Linknet FPN PSPNet DeepLabV3 DeepLabV3Plus UPerNet Segformer".split()
MORE_ENCODERS = """densenet121 vgg11_bn xception dpn68 resnext50_32x4d timm-regnetx_002 timm-res2net50_26w_4s
    timm-skresnet18 timm-mobilenetv3_small_minimal_100 mobileone_s0 timm-gernet_s timm-resnest14d tu-convnext_atto
    tu-edgenext_xx_small""".split()
NO_MIT = ("UnetPlusPlus", "Linknet")
SMP = [f"{d}, {e}" for d in DECODERS for e in ENCODERS if (e != "mit_b0" or d not in NO_MIT)] + [
    f"Unet, {e}" for e in MORE_ENCODERS
]
SMP_CASES = {"image:96x64": "; ".join(SMP), "image:128x128": "PAN, resnet18; PAN, mobilenet_v2"}
MONAI = {
    "gray": """BasicUNet(2, 1, 2, (4, 4, 8, 8, 16, 4)); BasicUNet(2, 1, 2, (4, 4, 8, 8, 16, 4),
        upsample='nontrainable'); BasicUNetPlusPlus(2, 1, 2, (4, 4, 8, 8, 16, 4)); DenseNet121(2, 1, 3);
        resnet10(spatial_dims=2, n_input_channels=1, num_classes=3); SEResNet50(spatial_dims=2, in_channels=1,
        num_classes=3); EfficientNetBN('efficientnet-b0', False, in_channels=1, num_classes=3); HighResNet(2, 1, 2);
        PatchDiscriminator(2, 8, 1); UNet(2, 1, 2, (4, 8, 16), (2, 2), num_res_units=2); UNet(2, 1, 2, (4, 8, 16),
        (2, 2), norm='BATCH'); AttentionUnet(2, 1, 2, (4, 8, 16), (2, 2)); DynUNet(2, 1, 2, [3, 3, 3], [1, 2, 2],
        [2, 2]); SegResNet(2, 8); AutoEncoder(2, 1, 2, (4, 8), (2, 2)); MedNeXt(2, 4); LocalNet(2, 1, 4, (0, 1, 2));
        RegUNet(2, 1, 4, 2); VNet(2); FlexibleUNet(1, 2, 'efficientnet-b0'); Quicknat(3, 1, 8); SegResNetDS(2, 8);
        AHNet((1, 1, 1, 1), 2); SegResNet(2, 8, upsample_mode='deconv'); AutoencoderKL(2, channels=(8, 8),
        num_res_blocks=1, attention_levels=(False, True), norm_num_groups=4); VQVAE(2, 1, 1, (8, 8), 1, (8, 8), ((2,
        4, 1, 1),) * 2, ((2, 4, 1, 1, 0),) * 2)""",
    "gray:64x64": """SwinUNETR(1, 2, spatial_dims=2, feature_size=12); UNETR(1, 2, size, 4, 24, 48, 2,
        spatial_dims=2); UNETR(1, 2, size, 4, 24, 48, 2, 'perceptron', spatial_dims=2); ViT(1, size, 16, 24, 48, 2,
        2, classification=True, spatial_dims=2); ViTAutoEnc(1, size, 16, 1, 4, 24, 48, 2, 2, spatial_dims=2);
        GlobalNet(size, 2, 1, 4, 2); SegResNetVAE(size, spatial_dims=2); VarAutoEncoder(2, (1, *size), 1, 4, (4, 8),
        (2, 2)); SwinUNETR(1, 2, spatial_dims=2, feature_size=12, use_v2=True)""",
    "gray:64x64 time": """DiffusionModelUNet(2, 1, 1, (1, 1), (8, 8), (False, True), 4, num_head_channels=4)""",
    "volume": """UNet(3, 1, 2, (4, 8, 16), (2, 2), num_res_units=2); BasicUNet(3, 1, 2, (4, 4, 8, 8, 16, 4));
        SegResNet(3, 8); DynUNet(3, 1, 2, [3, 3, 3], [1, 2, 2], [2, 2]); AttentionUnet(3, 1, 2, (4, 8), (2,));
        resnet10(spatial_dims=3, n_input_channels=1, num_classes=3); SegResNetDS(3, 8); RegUNet(3, 1, 4, 2);
        LocalNet(3, 1, 4, (0, 1, 2)); PatchDiscriminator(3, 8, 1); AutoEncoder(3, 1, 2, (4, 8), (2, 2)); DynUNet(3,
        1, 2, [3, 3, 3], [1, 2, 2], [2, 2], deep_supervision=True, res_block=True)""",
    "volume:64x48x64": "DenseNet121(3, 1, 3, init_features=8, growth_rate=4)",
    "volume:32x32x32": """UNETR(1, 2, size, 4, 24, 48, 2); GlobalNet(size, 3, 1, 4, 2); ViT(1, size, 16, 24, 48, 2,
        2, classification=True); DAF3D(1, 2)""",
}
SMALL = "block_out_channels=(8, 8), norm_num_groups=4"
CROSS = (
    f"down_block_types=('CrossAttnDownBlock2D', 'DownBlock2D'), {SMALL}, cross_attention_dim=8, attention_head_dim=2"
)
DIFFUSERS = {
    "image:64x48": f"""AutoencoderKL(down_block_types=('DownEncoderBlock2D',) * 2,
        up_block_types=('UpDecoderBlock2D',) * 2, {SMALL}); VQModel(down_block_types=('DownEncoderBlock2D',) * 2,
        up_block_types=('UpDecoderBlock2D',) * 2, {SMALL}); AutoencoderTiny(encoder_block_out_channels=(8,) * 4,
        decoder_block_out_channels=(8,) * 4); AsymmetricAutoencoderKL(down_block_out_channels=(8,),
        up_block_out_channels=(8,), norm_num_groups=4); T2IAdapter(channels=[8, 8, 8, 8], num_res_blocks=1);
        AutoencoderDC(encoder_block_out_channels=(8, 8), decoder_block_out_channels=(8, 8),
        encoder_layers_per_block=(1, 1), decoder_layers_per_block=(1, 1), encoder_block_types=('ResBlock',
        'EfficientViTBlock'), decoder_block_types=('ResBlock', 'EfficientViTBlock'), encoder_qkv_multiscales=((),
        (5,)), decoder_qkv_multiscales=((), (5,)), attention_head_dim=4, latent_channels=4)""",
    "latent:32x24": "Transformer2DModel(2, 4, 4, norm_num_groups=2)",
    "image:64x48 time": f"""UNet2DModel(down_block_types=('DownBlock2D', 'AttnDownBlock2D'),
        up_block_types=('AttnUpBlock2D', 'UpBlock2D'), {SMALL}, attention_head_dim=4)""",
    "latent:32x24 time tokens": f"""UNet2DConditionModel({CROSS}, up_block_types=('UpBlock2D',
        'CrossAttnUpBlock2D')); UNet2DConditionModel({CROSS}, up_block_types=('UpBlock2D', 'CrossAttnUpBlock2D'),
        use_linear_projection=True)""",
    "latent:32x32 time time": "DiTTransformer2DModel(2, 4, num_layers=2, norm_num_groups=2)",
    "video:5x32x32": """AutoencoderKLCogVideoX(down_block_types=('CogVideoXDownBlock3D',) * 2,
        up_block_types=('CogVideoXUpBlock3D',) * 2, block_out_channels=(8, 8), layers_per_block=1,
        norm_num_groups=4, latent_channels=4); AutoencoderKLWan(base_dim=8, z_dim=16, dim_mult=[1, 1, 1, 1],
        num_res_blocks=1)""",
}
MONAI_LOSSES = {
    f"logits{LOSS_SIZE} hot": """DiceLoss(sigmoid=True); DiceLoss(softmax=True, include_background=False);
        DiceLoss(softmax=True, batch=True, squared_pred=True, jaccard=True); DiceLoss(softmax=True,
        reduction='none'); GeneralizedDiceLoss(softmax=True); GeneralizedDiceLoss(softmax=True, w_type='simple',
        batch=True); DiceCELoss(softmax=True); DiceFocalLoss(softmax=True); GeneralizedDiceFocalLoss(softmax=True);
        FocalLoss(); FocalLoss(use_softmax=True, alpha=0.3); FocalLoss(weight=[1.0, 2.0, 3.0, 4.0]);
        TverskyLoss(softmax=True); SoftclDiceLoss(softmax=True); SoftDiceclDiceLoss(softmax=True);
        HausdorffDTLoss(softmax=True); MCCLoss(softmax=True); LogHausdorffDTLoss(softmax=True);
        BoundaryLoss(softmax=True); DeepSupervisionLoss(DiceLoss(softmax=True))""",
    f"logits{LOSS_SIZE} index": """DiceLoss(softmax=True, to_onehot_y=True); DiceCELoss(softmax=True,
        to_onehot_y=True); FocalLoss(to_onehot_y=True, use_softmax=True); TverskyLoss(softmax=True,
        to_onehot_y=True, include_background=False); GeneralizedWassersteinDiceLoss(1 - torch.eye(4).numpy());
        GeneralizedDiceLoss(softmax=True, to_onehot_y=True); HausdorffDTLoss(softmax=True, to_onehot_y=True)""",
    f"logits{LOSS_SIZE} hot mask": "MaskedDiceLoss(softmax=True); MaskedLoss(FocalLoss)",
    f"logits{LOSS_SIZE} classes": "NACLLoss(4, 2)",
    f"logits01{LOSS_SIZE} hot": "AsymmetricUnifiedFocalLoss(num_classes=4)",
    f"flow{LOSS_SIZE}": "BendingEnergyLoss(); BendingEnergyLoss(normalize=True); DiffusionLoss()",
    f"gray01{LOSS_SIZE} gray01": """SSIMLoss(2); SSIMLoss(2, kernel_type='uniform', win_size=7);
        GlobalMutualInformationLoss(); LocalNormalizedCrossCorrelationLoss(2);
        LocalNormalizedCrossCorrelationLoss(2, 5, 'gaussian'); JukeboxLoss(2);
        LocalNormalizedCrossCorrelationLoss(2, 7, 'triangular'); GlobalMutualInformationLoss('b-spline');
        MultiScaleLoss(torch.nn.MSELoss(), [1, 2])""",
    "volume01:15x13x17 volume01": """SSIMLoss(3); LocalNormalizedCrossCorrelationLoss(3);
        GlobalMutualInformationLoss(); DiceLoss(); JukeboxLoss(3)""",
}
SMP_LOSSES = {
    f"logits{LOSS_SIZE} classes": """DiceLoss('multiclass'); DiceLoss('multiclass', ignore_index=2);
        JaccardLoss('multiclass'); TverskyLoss('multiclass'); FocalLoss('multiclass'); FocalLoss('multiclass',
        ignore_index=1); LovaszLoss('multiclass'); LovaszLoss('multiclass', per_image=True, ignore_index=3);
        SoftCrossEntropyLoss(smooth_factor=0.1); SoftCrossEntropyLoss(smooth_factor=0.1, ignore_index=1);
        DiceLoss('multiclass', log_loss=True, classes=[1, 2])""",
    f"logit{LOSS_SIZE} mask": """DiceLoss('binary'); DiceLoss('binary', ignore_index=1); JaccardLoss('binary');
        MCCLoss(); TverskyLoss('binary'); FocalLoss('binary'); LovaszLoss('binary'); LovaszLoss('binary',
        ignore_index=1); SoftBCEWithLogitsLoss(); SoftBCEWithLogitsLoss(smooth_factor=0.1, ignore_index=1)""",
    f"logits{LOSS_SIZE} masks": """DiceLoss('multilabel'); JaccardLoss('multilabel'); TverskyLoss('multilabel',
        alpha=0.3); FocalLoss('multilabel'); SoftBCEWithLogitsLoss(pos_weight=torch.ones(4, 1, 1))""",
}
KORNIA_LOSSES = {
    f"image01{LOSS_SIZE} image01": """SSIMLoss(5); SSIMLoss(5, reduction='none', padding='valid');
        MS_SSIMLoss(reduction='none'); PSNRLoss(1.0); CharbonnierLoss('mean'); CauchyLoss('none');
        GemanMcclureLoss('sum'); WelschLoss('mean'); js_div_loss_2d; kl_div_loss_2d; mutual_information_loss_2d;
        normalized_mutual_information_loss_2d; MS_SSIMLoss()""",
    f"image{LOSS_SIZE}": "TotalVariation()",
    f"gray{LOSS_SIZE} image": "InverseDepthSmoothnessLoss()",
    f"logits{LOSS_SIZE} classes": """DiceLoss(); DiceLoss('macro'); DiceLoss(weight=torch.arange(1.0,
        5.0).double()); TverskyLoss(0.3, 0.7); FocalLoss(0.5, reduction='mean'); FocalLoss(None, reduction='mean',
        ignore_index=2); LovaszSoftmaxLoss(); DiceLoss(ignore_index=1)""",
    f"logits{LOSS_SIZE} masks": "BinaryFocalLossWithLogits(0.5, reduction='mean')",
    f"logit{LOSS_SIZE} binary": "LovaszHingeLoss()",
    f"logits{LOSS_SIZE} labels": "HausdorffERLoss(k=3)",
    "volume01:15x13x17 volume01": "SSIM3DLoss(5)",
}
KORNIA = {
    "image01:33x25": """filters.GaussianBlur2d((5, 3), (1.0, 2.0)); filters.BoxBlur((3, 5)); filters.Sobel();
        filters.Laplacian(5); filters.MedianBlur((3, 3)); filters.SpatialGradient(); filters.UnsharpMask((5, 5),
        (1.5, 1.5)); filters.BilateralBlur((5, 5), 0.1, (1.5, 1.5)); filters.MotionBlur(3, 35.0, 0.5);
        filters.BlurPool2D(3, 2); filters.MaxBlurPool2D(3, 2); filters.Canny(); color.RgbToHsv(); color.RgbToLab();
        color.RgbToGrayscale(); color.RgbToYcbcr(); color.RgbToLuv(); enhance.AdjustBrightness(0.2);
        enhance.AdjustHue(0.3); enhance.AdjustSaturation(1.5); enhance.AdjustContrast(1.5);
        enhance.AdjustGamma(1.2); enhance.Normalize(torch.tensor([0.4]).double(), torch.tensor([0.2]).double());
        geometry.Resize((40, 17)); geometry.Rotate(torch.tensor([10.0, 20.0]).double()); geometry.Hflip();
        geometry.Vflip(); geometry.Rot180(); geometry.PyrDown(); geometry.PyrUp(); geometry.ScalePyramid(2);
        feature.CornerGFTT(); feature.CornerHarris(0.04); feature.BlobHessian(); feature.BlobDoGSingle();
        geometry.Rescale(0.7)""",
    "gray01:32x32": "feature.HardNet(False); feature.SOSNet(False); feature.SIFTDescriptor(32); feature.KeyNet(False)",
}
SEGMENTATION = "fcn_resnet50 deeplabv3_mobilenet_v3_large lraspp_mobilenet_v3_large"
SUBSET = "resnet18 densenet121 mobilenet_v3_small efficientnet_b0 regnet_y_400mf shufflenet_v2_x0_5"
SUBSET_TIMM = """seresnet18 convnextv2_atto ghostnet_100 edgenext_xx_small mixnet_s mobilevit_xxs coat_lite_tiny
    repvgg_a0 resnet10t skresnet18 efficientvit_b0 test_nfnet test_mambaout fasternet_t0 repvit_m1"""
SUBSET_SMP = "; ".join(f"{d}, mobilenet_v2" for d in DECODERS if d != "MAnet")
VISION, SEGMENTATION_CALL = "{}(weights=None, num_classes=5)", "{}(weights=None, weights_backbone=None, num_classes=5)"
TIMM_CALL = "create_model('{}', num_classes=5)"
SMP_CALL = "create_model(*'{}'.replace(',', '').split(), encoder_weights=None, classes=3)"
TIMM_CASES = {"image": TIMM, "image:160x160": "test_vit3", "image:193x161": "inception_v3 rexnetr_100"}

FAMILIES = tuple(
    [
        Family("torchvision", "torchvision.models", VISION, TORCHVISION),
        Family(
            "torchvision, segmentation", "torchvision.models.segmentation", SEGMENTATION_CALL, {"image": SEGMENTATION}
        ),
        Family("timm", "timm", TIMM_CALL, TIMM_CASES),
        Family("segmentation_models_pytorch", "segmentation_models_pytorch", SMP_CALL, SMP_CASES),
        Family("MONAI networks", "monai.networks.nets", "{}", MONAI),
        Family("diffusers", "diffusers", "{}", DIFFUSERS),
        Family("kornia", "kornia", "{}", KORNIA),
    ]
    + [
        Family(f"{name} losses{', plain targets' if plain else ''}", library, "{}", words, plain_targets=plain)
        for name, library, words in (
            ("MONAI", "monai.losses", MONAI_LOSSES),
            ("segmentation_models_pytorch", "segmentation_models_pytorch.losses", SMP_LOSSES),
            ("kornia", "kornia.losses", KORNIA_LOSSES),
        )
        for plain in (False, True)
    ]
    + [
        Family(f"{name}, {kind}", library, called, words, batch=batch, channels_last=batch == 2)
        for kind, batch in (("batch of one", 1), ("channels_last", 2))
        for name, library, called, words in (
            ("torchvision", "torchvision.models", VISION, {"image": SUBSET}),
            ("timm", "timm", TIMM_CALL, {"image": SUBSET_TIMM}),
            ("segmentation_models_pytorch", "segmentation_models_pytorch", SMP_CALL, {"image:96x64": SUBSET_SMP}),
            ("MONAI networks", "monai.networks.nets", "{}", {"gray": MONAI["gray"]}),
        )
    ]
    + [Family(library, library, "{}", words) for library, words in BLOCKS.items()]
)
