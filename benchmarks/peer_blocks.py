"""Blocks and smaller libraries that benchmarks/tiling_models.py tries: benchmarks/peers.py says what a case is.

Library -> words for the inputs -> expressions, separated by `;`. Knows nothing of tiles.
"""

from __future__ import annotations

BLOCKS = {
    "timm.layers": {
        "features:13x11": """
            AdaptiveAvgMaxPool2d(1); AdaptiveAvgMaxPool2d((3, 2)); Attention2d(8, 8, 2); Attention2d(8, 8, 2,
            expand_first=True, head_first=False); AvgPool2dSame(3, 2); AvgPool2dSame(2, 2,
            count_include_pad=False); BatchNormAct2d(8); BatchNormAct2d(8, act_layer='silu', inplace=False);
            BlurPool2d(8, 3, 2); BlurPool2d(8, 4, 2, pad_mode='constant'); CecaModule(8); ClassifierHead(8, 5);
            ClassifierHead(8, 5, pool_type='max', input_fmt='NCHW'); ClassifierHead(8, 5, pool_type='avgmax');
            ClassifierHead(8, 5, pool_type='catavgmax'); ClassifierHead(8, 0); Conv2dSame(8, 6, 3, 2);
            Conv2dSame(8, 8, 4, 3, dilation=2, groups=2); ConvBnAct(8, 8, 3); ConvMlp(8, 16); ConvNormAct(8, 6, 3,
            2); ConvNormActAa(8, 6, 3, 2, aa_layer=BlurPool2d); DepthToSpace(2); DropBlock2d(0.3, 3);
            DropBlock2d(0.3, 3, batchwise=True); DropBlock2d(0.3, 3, fast=True); DropBlock2d(0.3, 3,
            with_noise=True); DropPath(0.5); EcaModule(8); EffectiveSEModule(8); EvoNorm2dB0(8); EvoNorm2dB1(8);
            EvoNorm2dB2(8); EvoNorm2dS0(8, group_size=2); EvoNorm2dS0a(8, group_size=2); EvoNorm2dS1(8,
            group_size=2); EvoNorm2dS1a(8, group_size=2); EvoNorm2dS2(8, group_size=2); EvoNorm2dS2a(8,
            group_size=2); FilterResponseNormAct2d(8); FilterResponseNormTlu2d(8); FrozenBatchNormAct2d(8); GELU();
            GELUTanh(); GlobalContext(8); GlobalContext(8, fuse_add=True, fuse_scale=False); GlobalContext(8,
            use_attn=False); GlobalResponseNormMlp(8, 16, use_conv=True); GluMlp(8, 16, use_conv=True);
            GroupNorm(8, 2); GroupNorm(8, 8); GroupNorm1(8); GroupNorm1Act(8); GroupNormAct(8, 2); HardMish();
            HardSigmoid(); HardSwish(); LayerNorm2d(8); LayerNorm2dFp32(8); LayerNormAct2d(8); LayerScale2d(8);
            LsePlus2d(); LsePlus2d(flatten=False); Mish(); MixedConv2d(8, 8, [3, 5]); Mlp(8, 16, use_conv=True);
            MultiQueryAttention2d(8, None, 2, 4, 4, query_strides=2, kv_stride=2); MultiQueryAttention2d(8,
            num_heads=2); MultiQueryAttentionV2(8, num_heads=2); NonLocalAttn(8); NormMlpClassifierHead(8, 5);
            NormMlpClassifierHead(8, 5, hidden_size=7, pool_type='avg'); PReLU(); QuickGELU(); RmsNorm2d(8);
            RmsNorm2dFp32(8); RmsNormAct2d(8); SEModule(8); SEModule(8, add_maxpool=True); ScaledStdConv2d(8, 6,
            3); ScaledStdConv2dSame(8, 6, 3, 2); SelectAdaptivePool2d(pool_type='avg');
            SelectAdaptivePool2d(pool_type='catavgmax', flatten=True); SelectAdaptivePool2d(pool_type='fast');
            SelectAdaptivePool2d(pool_type='fastmax', flatten=True); SelectAdaptivePool2d(pool_type='fastavgmax');
            SelectAdaptivePool2d(pool_type='fastcatavgmax'); SelectAdaptivePool2d(output_size=3,
            pool_type='avgmax'); SelectiveKernel(8, 8, rd_divisor=1); SelectiveKernel(8, split_input=True,
            rd_divisor=1); SeparableConv2d(8, 8); SeparableConvNormAct(8, 8); SimPool2d(8, num_heads=2);
            SimPool2d(8, gamma=1.25); SimpleNorm2d(8); SplitAttn(8); SplitAttn(8, radix=1); SplitAttn(8, radix=4,
            norm_layer=torch.nn.BatchNorm2d); SqueezeExcite(8, rd_ratio=0.5); StdConv2d(8, 6, 3); StdConv2dSame(8,
            6, 3, 2); Swish(); create_attn('cbam', 8); create_attn('lcbam', 8); RotAttentionPool2d(8,
            ref_feat_size=(13, 11), num_heads=2); create_pool2d('max', 3,
            2, padding='same'); create_pool2d('max', 2, 2, ceil_mode=True)""",
        "features:14x10": """
            PatchEmbed((14, 10), 2, 8, 6); PatchEmbed((14, 10), 2, 8, 6, flatten=False); PatchEmbed((14, 10), 4, 8,
            6, strict_img_size=False, dynamic_img_pad=True); DepthToSpace(2); HybridEmbed(torch.nn.Conv2d(8, 6, 3,
            2, 1), img_size=(14, 10), in_chans=8, embed_dim=4); BatNonLocalAttn(8, block_size=2, rd_channels=4);
            PatchEmbed((16, 16), 4, 8, 6, strict_img_size=False, dynamic_img_pad=True)""",
    },
    "monai.networks.blocks": {
        "features:13x11": """
            ADN('NDA', 8, act='PRELU', norm=('BATCH', {}), norm_dim=2, dropout_dim=2, dropout=0.3);
            ActiConvNormBlock(8, 8, spatial_dims=2); ChannelSELayer(2, 8); ConvDenseBlock(2, 8, [8, 8]);
            Convolution(2, 8, 6, strides=2, is_transposed=True); Convolution(2, 8, 8, dilation=2, act=('elu',
            {'inplace':True}), norm='instance', dropout=0.2); DenseBlock([torch.nn.Conv2d(8, 8, 1)]);
            FactorizedIncreaseBlock(8, 6, 2); GCN(8, 4, 5); Refine(8); MaxAvgPool(2, 2); MaxAvgPool(2, (3, 2), 2,
            1, True); MedNeXtBlock(8, 8, dim='2d'); MedNeXtDownBlock(8, 16, dim='2d'); MedNeXtUpBlock(8, 4,
            dim='2d'); MemoryEfficientSwish(); Mish(); Swish(); ResBlock(2, 8, ('group', {'num_groups':2}));
            ResidualSELayer(2, 8); ResidualUnit(2, 8, 6, strides=2); ResidualUnit(2, 8, 8, subunits=3,
            last_conv_only=True); SEBlock(2, 8, 4, 4, 6); SimpleASPP(2, 8, 4); SimpleASPP(2, 8, 4, kernel_sizes=(1,
            3, 3), dilations=(1, 2, 3)); SubpixelUpSample(2, 8, 4, 2); SubpixelUpSample(2, 8, 4, 3,
            apply_pad_pool=False); UnetBasicBlock(2, 8, 6, 3, 2, 'instance'); UnetOutBlock(2, 8, 3);
            UnetResBlock(2, 8, 6, 3, 2, ('group', {'num_groups':2})); UnetrBasicBlock(2, 8, 6, 3, 1, 'instance',
            True); UnetrPrUpBlock(2, 8, 6, 1, 3, 1, 2, 'instance', True, True); UpSample(2, 8, 4, 2,
            mode='deconv'); UpSample(2, 8, 4, 2, mode='nontrainable'); UpSample(2, 8, 4, 3, mode='pixelshuffle');
            UpSample(2, 8, 4, size=(20, 17), mode='nontrainable'); UpSample(2, 8, 8, 2, mode='deconvgroup');
            SpatialAttentionBlock(2, 8, norm_num_groups=2); SpatialAttentionBlock(2, 8, num_head_channels=4,
            norm_num_groups=2, attention_dtype=torch.float64); PatchEmbed(2, 8, 6, torch.nn.LayerNorm, 2)""",
        "features:12x10": """
            SubpixelDownSample(2, 8, 4, 2); PatchEmbeddingBlock(8, (12, 10), 2, 6, 2, 'perceptron', 'learnable',
            spatial_dims=2); PatchEmbed(2, 8, 6, torch.nn.LayerNorm, 2)""",
        "feature_volume:7x9x6": """
            ADN('NDA', 8, norm='INSTANCE', norm_dim=3, dropout_dim=3, dropout=0.3); P3DActiConvNormBlock(8, 6, 3,
            0); P3DActiConvNormBlock(8, 6, 3, 2); ActiConvNormBlock(8, 8); ChannelSELayer(3, 8); Convolution(3, 8,
            6, strides=(2, 1, 2)); Convolution(3, 8, 6, strides=2, is_transposed=True); MaxAvgPool(3, 2);
            MedNeXtBlock(8, 8); MedNeXtDownBlock(8, 16); MedNeXtUpBlock(8, 4); ResBlock(3, 8, 'batch');
            ResidualUnit(3, 8, 6, strides=2); SimpleASPP(3, 8, 4, dilations=(1, 1, 2, 2)); SubpixelUpSample(3, 8,
            2, 2); UpSample(3, 8, 4, 2, mode='nontrainable'); UpSample(3, 8, 4, 2, mode='deconv');
            SpatialAttentionBlock(3, 8, norm_num_groups=2); UnetResBlock(3, 8, 6, 3, 2, 'instance');
            UnetrPrUpBlock(3, 8, 6, 1, 3, 1, 2, 'instance', True, True); FactorizedIncreaseBlock(8, 6);
            PatchEmbed(2, 8, 6, torch.nn.LayerNorm, 3)""",
    },
    "monai.networks.layers": {
        "features:13x11": """
            ChannelPad(2, 8, 12); ChannelPad(2, 8, 12, 'project'); ChannelPad(2, 8, 4, 'project'); DropPath(0.5);
            GaussianFilter(2, [1.0, 2.0]); GaussianFilter(2, 1.5, requires_grad=True); GaussianFilter(2, 1.0,
            approx='sampled'); MeanFilter(2, 3); MedianFilter((3, 5), 2); LaplaceFilter(2, 3); SharpenFilter(2, 3);
            EllipticalFilter(2, 3); SavitzkyGolayFilter(5, 2, 2); SavitzkyGolayFilter(5, 2, 3, 'reflect');
            SkipConnection(torch.nn.Conv2d(8, 8, 1)); SkipConnection(torch.nn.Conv2d(8, 8, 1), mode='mul');
            Flatten(); Reshape(13*11*8); EMAQuantizer(2, 6, 8, ddp_sync=False); VectorQuantizer(EMAQuantizer(2, 6,
            8, ddp_sync=False))""",
        "feature_volume:7x9x6": """
            GaussianFilter(3, 1.0); MedianFilter(1, 3); EMAQuantizer(3, 6, 8, ddp_sync=False);
            SavitzkyGolayFilter(3, 1, 4); MeanFilter(3, 3)""",
    },
    "piq": {
        "image01:64x64 image01": """
            SSIMLoss(data_range=1.0); SSIMLoss(data_range=1.0, downsample=False, reduction='none');
            MultiScaleSSIMLoss(data_range=1.0, kernel_size=3); VIFLoss(data_range=1.0); GMSDLoss(data_range=1.0);
            MultiScaleGMSDLoss(data_range=1.0, scale_weights=torch.tensor([0.5, 0.5]));
            MultiScaleGMSDLoss(chromatic=True); FSIMLoss(data_range=1.0); FSIMLoss(chromatic=False);
            HaarPSILoss(data_range=1.0); MDSILoss(data_range=1.0); VSILoss(data_range=1.0);
            SRSIMLoss(data_range=1.0, scale=0.5); DSSLoss(data_range=1.0); psnr""",
        "image01:33x25": "TVLoss(); TVLoss('l1'); TVLoss('l2_squared'); total_variation",
    },
    "pytorch_msssim": {
        "image01:33x25 image01": "SSIM(1.0); SSIM(1.0, win_size=7, nonnegative_ssim=True, size_average=False)",
        "volume01:15x13x17 volume01": "SSIM(1.0, win_size=5, channel=1, spatial_dims=3)",
    },
    "lpips": {
        "image01:64x64 image01": """
            LPIPS(net='alex', pretrained=False, pnet_rand=True, verbose=False); LPIPS(net='squeeze',
            pretrained=False, pnet_rand=True, verbose=False, spatial=True); LPIPS(net='vgg', pretrained=False,
            pnet_rand=True, verbose=False, lpips=False)""",
    },
    "vit_pytorch": {
        "image:64x64": """
            ViT(image_size=64, patch_size=16, num_classes=5, dim=24, depth=2, heads=2, mlp_dim=32);
            SimpleViT(image_size=64, patch_size=16, num_classes=5, dim=24, depth=2, heads=2, mlp_dim=32)""",
    },
    "denoising_diffusion_pytorch": {
        "image:32x32 time": """
            Unet(dim=8, dim_mults=(1, 2)); Unet(dim=8, dim_mults=(1, 2), flash_attn=True); Unet(dim=8,
            dim_mults=(1, 2), self_condition=True, learned_variance=True); Unet(dim=8, dim_mults=(1, 2),
            full_attn=(False, True))""",
        "image01:32x32": """
            GaussianDiffusion(Unet(dim=8, dim_mults=(1, 2)), image_size=32, timesteps=10);
            GaussianDiffusion(Unet(dim=8, dim_mults=(1, 2)), image_size=32, timesteps=10, objective='pred_noise',
            offset_noise_strength=0.1); LearnedGaussianDiffusion(Unet(dim=8, dim_mults=(1, 2),
            learned_variance=True), image_size=32, timesteps=10); ElucidatedDiffusion(Unet(dim=8, dim_mults=(1, 2),
            random_fourier_features=True), image_size=32); WeightedObjectiveGaussianDiffusion(Unet(dim=8,
            dim_mults=(1, 2), out_dim=8), image_size=32, timesteps=10); GaussianDiffusion(Unet(dim=8, dim_mults=(1,
            2), self_condition=True), image_size=32, timesteps=10)""",
        "sequence:32 time": "Unet1D(dim=8, dim_mults=(1, 2), channels=2)",
    },
    "vector_quantize_pytorch": {
        "features:13x11": """
            VectorQuantize(dim=8, codebook_size=6, accept_image_fmap=True); VectorQuantize(dim=8, codebook_size=6,
            accept_image_fmap=True, use_cosine_sim=True); VectorQuantize(dim=8, codebook_size=6,
            accept_image_fmap=True, kmeans_init=True, threshold_ema_dead_code=2); VectorQuantize(dim=8,
            codebook_size=6, accept_image_fmap=True, learnable_codebook=True, ema_update=False,
            rotation_trick=True); VectorQuantize(dim=8, codebook_size=6, accept_image_fmap=True,
            orthogonal_reg_weight=10.); VectorQuantize(dim=8, codebook_size=6, codebook_dim=4, heads=2,
            separate_codebook_per_head=True, accept_image_fmap=True); VectorQuantize(dim=8, codebook_size=6,
            accept_image_fmap=True, stochastic_sample_codes=True, sample_codebook_temp=0.5); FSQ(levels=[5, 3],
            dim=8); LFQ(codebook_size=16, dim=8, entropy_loss_weight=0.1); LatentQuantize(levels=[5, 3], dim=8)""",
        "feature_volume:7x9x6": """
            FSQ(levels=[5, 3], dim=8); LFQ(codebook_size=16, dim=8); LatentQuantize(levels=[5, 3], dim=8)""",
    },
    "ultralytics.nn.modules": {
        "features:16x12": """
            AConv(8, 8); ADown(8, 8); Attention(8, num_heads=2); Bottleneck(8, 8); BottleneckCSP(8, 8); C1(8, 8);
            C2(8, 8); C2f(8, 8, shortcut=True); C2fCIB(8, 8); C3(8, 8); C3Ghost(8, 8); C3k2(8, 8); C3k2(8, 8, 1,
            True); C3x(8, 8); CBAM(8); CBLinear(8, [4, 4]); CIB(8, 8); ChannelAttention(8); Classify(8, 5); Conv(8,
            6, 3, 2); Conv2(8, 6); ConvTranspose(8, 6); DWConv(8, 8, 3); DWConvTranspose2d(8, 8, 4, 2, 1); ELAN1(8,
            8, 8, 4); Focus(8, 6); GhostBottleneck(8, 8); GhostConv(8, 8); HGBlock(8, 4, 8, lightconv=True);
            HGStem(8, 4, 8); LayerNorm2d(8); LightConv(8, 8); Proto(8, 4, 4); RepC3(8, 8); RepConv(8, 8);
            RepNCSPELAN4(8, 8, 8, 4, 1); RepVGGDW(8); ResNetLayer(8, 4); SCDown(8, 8, 3, 2); SPP(8, 8); SPPELAN(8,
            8, 4); SPPF(8, 8); SpatialAttention(); TransformerBlock(8, 8, 2, 1); AIFI(8, 16, 2)""",
    },
    "ultralytics.nn.tasks": {
        "image:64x64": """
            DetectionModel('yolov8n.yaml', ch=3, nc=4, verbose=False); DetectionModel('yolo11n.yaml', ch=3, nc=4,
            verbose=False); DetectionModel('yolov10n.yaml', ch=3, nc=4, verbose=False);
            DetectionModel('yolov5n.yaml', ch=3, nc=4, verbose=False); DetectionModel('yolov9t.yaml', ch=3, nc=4,
            verbose=False); DetectionModel('yolo12n.yaml', ch=3, nc=4, verbose=False);
            SegmentationModel('yolov8n-seg.yaml', ch=3, nc=4, verbose=False); PoseModel('yolov8n-pose.yaml', ch=3,
            nc=4, verbose=False); OBBModel('yolov8n-obb.yaml', ch=3, nc=4, verbose=False);
            DetectionModel('yolov3-tiny.yaml', ch=3, nc=4, verbose=False); DetectionModel('yolov6n.yaml', ch=3,
            nc=4, verbose=False); ClassificationModel('yolov8n-cls.yaml', ch=3, nc=4, verbose=False);
            ClassificationModel('yolo11n-cls.yaml', ch=3, nc=4, verbose=False)""",
    },
    "super_image": {
        "image01:24x17": """
            EdsrModel(EdsrConfig(scale=2, n_resblocks=2, n_feats=8)); MsrnModel(MsrnConfig(scale=2, n_feats=8,
            n_blocks=2)); A2nModel(A2nConfig(scale=2)); CarnModel(CarnConfig(scale=2));
            PanModel(PanConfig(scale=2)); RcanModel(RcanConfig(scale=2, n_resgroups=1, n_resblocks=1, n_feats=16));
            MdsrModel(MdsrConfig(scale=2, n_resblocks=2, n_feats=8))""",
    },
    "pytorch_wavelets": {
        "image:32x24": """
            DWTForward(J=2, wave='db2', mode='zero'); DWTForward(J=2, wave='db3', mode='periodization');
            DWTForward(J=1, wave='haar', mode='symmetric'); DWTForward(J=1, wave='db2', mode='reflect');
            ScatLayer(); ScatLayerj2(); DTCWTForward(J=2); DTCWTForward(J=3, biort='near_sym_b', qshift='qshift_b')""",
        "sequence:40": "DWT1DForward(J=2, wave='db2')",
    },
    "torch_dct": {
        "image:16x12": "dct_2d; idct_2d; dct; dct_3d; dct1; idct",
    },
    "unet": {
        "image:64x64": """
            UNet2D(in_channels=3, out_classes=2, num_encoding_blocks=3, out_channels_first_layer=4,
            normalization='batch', padding=True); UNet2D(in_channels=3, out_classes=2, num_encoding_blocks=3,
            out_channels_first_layer=4, normalization='instance', residual=True, padding=True,
            upsampling_type='linear', preactivation=True, padding_mode='reflect'); UNet2D(in_channels=3,
            out_classes=2, num_encoding_blocks=3, out_channels_first_layer=4)""",
        "volume:24x24x24": """
            UNet3D(in_channels=1, out_classes=2, num_encoding_blocks=3, out_channels_first_layer=4,
            normalization='batch', padding=True)""",
    },
    "axial_attention": {
        "features:12x10": """
            AxialAttention(dim=8, dim_index=1, heads=2, num_dimensions=2); AxialAttention(dim=8, dim_index=1,
            heads=2, num_dimensions=2, sum_axial_out=False); AxialImageTransformer(dim=8, depth=1,
            reversible=False, axial_pos_emb_shape=(12, 10)); AxialImageTransformer(dim=8, depth=1, heads=2,
            reversible=True); AxialPositionalEmbedding(8, (12, 10))""",
        "feature_volume:7x9x6": "AxialAttention(dim=8, dim_index=1, heads=2, num_dimensions=3)",
    },
    "dynamic_network_architectures.architectures.unet": {
        "image:32x24": """
            PlainConvUNet(3, 3, [4, 8, 8], conv_op=torch.nn.Conv2d, kernel_sizes=3, strides=[1, 2, 2],
            n_conv_per_stage=1, num_classes=3, n_conv_per_stage_decoder=1, conv_bias=True,
            norm_op=torch.nn.InstanceNorm2d, norm_op_kwargs={'eps':1e-5, 'affine':True}, nonlin=torch.nn.LeakyReLU,
            nonlin_kwargs={'inplace':True}); PlainConvUNet(3, 3, [4, 8, 8], conv_op=torch.nn.Conv2d,
            kernel_sizes=3, strides=[1, 2, 2], n_conv_per_stage=1, num_classes=3, n_conv_per_stage_decoder=1,
            conv_bias=True, norm_op=torch.nn.InstanceNorm2d, norm_op_kwargs={'eps':1e-5, 'affine':True},
            nonlin=torch.nn.LeakyReLU, nonlin_kwargs={'inplace':True}, deep_supervision=True, nonlin_first=True);
            ResidualEncoderUNet(3, 3, [4, 8, 8], conv_op=torch.nn.Conv2d, kernel_sizes=3, strides=[1, 2, 2],
            n_blocks_per_stage=1, num_classes=3, n_conv_per_stage_decoder=1, conv_bias=True,
            norm_op=torch.nn.InstanceNorm2d, norm_op_kwargs={'eps':1e-5, 'affine':True}, nonlin=torch.nn.LeakyReLU,
            nonlin_kwargs={'inplace':True}); ResidualEncoderUNet(3, 3, [4, 8, 8], conv_op=torch.nn.Conv2d,
            kernel_sizes=3, strides=[1, 2, 2], n_blocks_per_stage=1, num_classes=3, n_conv_per_stage_decoder=1,
            conv_bias=True, norm_op=torch.nn.InstanceNorm2d, norm_op_kwargs={'eps':1e-5, 'affine':True},
            nonlin=torch.nn.LeakyReLU, nonlin_kwargs={'inplace':True}, deep_supervision=True)""",
        "volume:12x16x12": """
            PlainConvUNet(1, 3, [4, 8, 8], conv_op=torch.nn.Conv3d, kernel_sizes=3, strides=[1, 2, 2],
            n_conv_per_stage=1, num_classes=3, n_conv_per_stage_decoder=1, conv_bias=True,
            norm_op=torch.nn.InstanceNorm3d, norm_op_kwargs={'eps':1e-5, 'affine':True}, nonlin=torch.nn.LeakyReLU,
            nonlin_kwargs={'inplace':True}); PlainConvUNet(1, 3, [4, 8, 8], conv_op=torch.nn.Conv3d,
            kernel_sizes=3, strides=[1, 2, 2], n_conv_per_stage=1, num_classes=3, n_conv_per_stage_decoder=1,
            conv_bias=True, norm_op=torch.nn.InstanceNorm3d, norm_op_kwargs={'eps':1e-5, 'affine':True},
            nonlin=torch.nn.LeakyReLU, nonlin_kwargs={'inplace':True}, deep_supervision=True, nonlin_first=True);
            ResidualEncoderUNet(1, 3, [4, 8, 8], conv_op=torch.nn.Conv3d, kernel_sizes=3, strides=[1, 2, 2],
            n_blocks_per_stage=1, num_classes=3, n_conv_per_stage_decoder=1, conv_bias=True,
            norm_op=torch.nn.InstanceNorm3d, norm_op_kwargs={'eps':1e-5, 'affine':True}, nonlin=torch.nn.LeakyReLU,
            nonlin_kwargs={'inplace':True}); ResidualEncoderUNet(1, 3, [4, 8, 8], conv_op=torch.nn.Conv3d,
            kernel_sizes=3, strides=[1, 2, 2], n_blocks_per_stage=1, num_classes=3, n_conv_per_stage_decoder=1,
            conv_bias=True, norm_op=torch.nn.InstanceNorm3d, norm_op_kwargs={'eps':1e-5, 'affine':True},
            nonlin=torch.nn.LeakyReLU, nonlin_kwargs={'inplace':True}, deep_supervision=True)""",
    },
    "efficientnet_pytorch": {
        "image:64x64": "EfficientNet.from_name('efficientnet-b0', num_classes=5, image_size=64)",
    },
    "torchvision.ops": {
        "features:13x11": """
            Conv2dNormActivation(8, 6); DropBlock2d(0.3, 3); FrozenBatchNorm2d(8); SqueezeExcitation(8, 4);
            StochasticDepth(0.5, 'row'); StochasticDepth(0.5, 'batch'); Permute([0, 2, 3, 1])""",
        "feature_volume:7x9x6": "Conv3dNormActivation(8, 6); DropBlock3d(0.3, 3)",
    },
    "transformers": {
        "image:64x64": """
            ViTModel(ViTConfig(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
            image_size=64, patch_size=16)); ViTForImageClassification(ViTConfig(hidden_size=16,
            num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, image_size=64, patch_size=16));
            ViTForMaskedImageModeling(ViTConfig(hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
            intermediate_size=32, image_size=64, patch_size=16, encoder_stride=16));
            DeiTModel(DeiTConfig(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
            image_size=64, patch_size=16)); BeitModel(BeitConfig(hidden_size=16, num_hidden_layers=2,
            num_attention_heads=2, intermediate_size=32, image_size=64, patch_size=16));
            BeitForSemanticSegmentation(BeitConfig(hidden_size=16, num_hidden_layers=4, num_attention_heads=2,
            intermediate_size=32, image_size=64, patch_size=16, out_indices=[1, 2, 3, 4],
            use_auxiliary_head=False)); Data2VecVisionModel(Data2VecVisionConfig(hidden_size=16,
            num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, image_size=64, patch_size=16,
            use_relative_position_bias=True)); SwinModel(SwinConfig(embed_dim=8, depths=[1, 2, 1], num_heads=[1, 2,
            2], window_size=4, image_size=64, patch_size=4)); Swinv2Model(Swinv2Config(embed_dim=8, depths=[1, 2,
            1], num_heads=[1, 2, 2], window_size=4, image_size=64, patch_size=4));
            Swinv2ForImageClassification(Swinv2Config(embed_dim=8, depths=[1, 2, 1], num_heads=[1, 2, 2],
            window_size=4, image_size=64, patch_size=4)); SwinBackbone(SwinConfig(embed_dim=8, depths=[1, 2, 1],
            num_heads=[1, 2, 2], window_size=4, image_size=64, patch_size=4, out_features=['stage1', 'stage3']));
            ConvNextModel(ConvNextConfig(hidden_sizes=[8, 8, 16, 16], depths=[1, 1, 1, 1]));
            ConvNextV2Model(ConvNextV2Config(hidden_sizes=[8, 8, 16, 16], depths=[1, 1, 1, 1]));
            ConvNextBackbone(ConvNextConfig(hidden_sizes=[8, 8, 16, 16], depths=[1, 1, 1, 1],
            out_features=['stage1', 'stage4'])); SegformerForSemanticSegmentation(SegformerConfig(hidden_sizes=[8,
            8, 16, 16], depths=[1, 1, 1, 1], num_attention_heads=[1, 1, 2, 2], decoder_hidden_size=8));
            ResNetModel(ResNetConfig(embedding_size=8, hidden_sizes=[8, 8], depths=[1, 1]));
            ResNetForImageClassification(ResNetConfig(embedding_size=8, hidden_sizes=[8, 8], depths=[1, 1],
            layer_type='basic')); RegNetModel(RegNetConfig(embedding_size=8, hidden_sizes=[8, 8], depths=[1, 1],
            groups_width=4)); MobileNetV1Model(MobileNetV1Config(depth_multiplier=0.25));
            MobileNetV2Model(MobileNetV2Config(depth_multiplier=0.35));
            MobileNetV2ForSemanticSegmentation(MobileNetV2Config(depth_multiplier=0.35, output_stride=16));
            MobileViTModel(MobileViTConfig(image_size=64, hidden_sizes=[16, 16, 16], neck_hidden_sizes=[8, 8, 8, 8,
            8, 8, 16])); MobileViTForSemanticSegmentation(MobileViTConfig(image_size=64, hidden_sizes=[16, 16, 16],
            neck_hidden_sizes=[8, 8, 8, 8, 8, 8, 16], aspp_out_channels=8));
            MobileViTV2Model(MobileViTV2Config(image_size=64, width_multiplier=0.25));
            PoolFormerModel(PoolFormerConfig(hidden_sizes=[8, 8, 16, 16], depths=[1, 1, 1, 1]));
            PvtModel(PvtConfig(image_size=64, hidden_sizes=[8, 8, 16, 16], depths=[1, 1, 1, 1],
            num_attention_heads=[1, 1, 2, 2])); PvtV2Model(PvtV2Config(image_size=64, hidden_sizes=[8, 8, 16, 16],
            depths=[1, 1, 1, 1], num_attention_heads=[1, 1, 2, 2])); FocalNetModel(FocalNetConfig(image_size=64,
            embed_dim=8, hidden_sizes=[8, 16, 16], depths=[1, 1, 1], focal_levels=[2, 2, 2], focal_windows=[3, 3,
            3])); LevitModel(LevitConfig(image_size=64, hidden_sizes=[16, 16, 16], num_attention_heads=[1, 1, 1],
            depths=[1, 1, 1], key_dim=[4, 4, 4])); Dinov2Model(Dinov2Config(hidden_size=16, num_hidden_layers=2,
            num_attention_heads=2, intermediate_size=32, image_size=64, patch_size=16));
            Dinov2Backbone(Dinov2Config(hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
            intermediate_size=32, image_size=64, patch_size=16, out_features=['stage1', 'stage2']));
            Dinov2WithRegistersModel(Dinov2WithRegistersConfig(hidden_size=16, num_hidden_layers=2,
            num_attention_heads=2, intermediate_size=32, image_size=64, patch_size=16));
            DINOv3ViTModel(DINOv3ViTConfig(hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
            intermediate_size=32, image_size=64, patch_size=16));
            DINOv3ConvNextModel(DINOv3ConvNextConfig(hidden_sizes=[8, 8, 16, 16], depths=[1, 1, 1, 1]));
            ViTMAEModel(ViTMAEConfig(hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
            intermediate_size=32, image_size=64, patch_size=16)); ViTMAEForPreTraining(ViTMAEConfig(hidden_size=16,
            num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, image_size=64, patch_size=16,
            decoder_hidden_size=16, decoder_num_hidden_layers=1, decoder_num_attention_heads=2,
            decoder_intermediate_size=16)); ViTMSNModel(ViTMSNConfig(hidden_size=16, num_hidden_layers=2,
            num_attention_heads=2, intermediate_size=32, image_size=64, patch_size=16));
            UperNetForSemanticSegmentation(UperNetConfig(backbone_config=ConvNextConfig(hidden_sizes=[8, 8, 16,
            16], depths=[1, 1, 1, 1], out_features=['stage1', 'stage2', 'stage3', 'stage4']), hidden_size=8,
            auxiliary_in_channels=16, auxiliary_channels=8)); DPTForDepthEstimation(DPTConfig(hidden_size=16,
            num_hidden_layers=4, num_attention_heads=2, intermediate_size=32, image_size=64, patch_size=16,
            backbone_out_indices=[0, 1, 2, 3], neck_hidden_sizes=[8, 8, 8, 8], fusion_hidden_size=8));
            GLPNForDepthEstimation(GLPNConfig(hidden_sizes=[8, 8, 16, 16], depths=[1, 1, 1, 1],
            num_attention_heads=[1, 1, 2, 2], decoder_hidden_size=8));
            SamVisionModel(SamVisionConfig(hidden_size=16, output_channels=8, num_hidden_layers=2,
            num_attention_heads=2, image_size=64, patch_size=8, window_size=3, global_attn_indexes=[1],
            mlp_dim=16)); Swin2SRForImageSuperResolution(Swin2SRConfig(image_size=64, embed_dim=12, depths=[1, 2],
            num_heads=[2, 2], window_size=8, upscale=2));
            Swin2SRForImageSuperResolution(Swin2SRConfig(image_size=64, embed_dim=12, depths=[1, 1], num_heads=[2,
            2], window_size=8, upscale=4, upsampler='nearest+conv')); TextNetModel(TextNetConfig());
            VitDetModel(VitDetConfig(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, image_size=64,
            patch_size=8, window_block_indices=[0], window_size=3, use_relative_position_embeddings=True,
            pretrain_image_size=64)); HieraModel(HieraConfig(image_size=[64, 64], embed_dim=8, depths=[1, 1, 1, 1],
            num_heads=[1, 1, 2, 2], patch_size=[7, 7], patch_stride=[4, 4], masked_unit_size=[8, 8],
            mlp_ratio=1.0)); SwiftFormerModel(SwiftFormerConfig(depths=[1, 1, 1, 1], embed_dims=[8, 8, 16, 16]));
            BitModel(BitConfig(embedding_size=8, hidden_sizes=[8, 8, 16, 16], depths=[1, 1, 1, 1], num_groups=2));
            BitModel(BitConfig(embedding_size=8, hidden_sizes=[8, 8, 16, 16], depths=[1, 1, 1, 1], num_groups=2,
            layer_type='bottleneck', global_padding='SAME')); YolosModel(YolosConfig(hidden_size=16,
            num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, image_size=[64, 64], patch_size=16,
            num_detection_tokens=3)); CLIPVisionModel(CLIPVisionConfig(hidden_size=16, num_hidden_layers=2,
            num_attention_heads=2, intermediate_size=32, image_size=64, patch_size=16));
            SiglipVisionModel(SiglipVisionConfig(hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
            intermediate_size=32, image_size=64, patch_size=16)); IJepaModel(IJepaConfig(hidden_size=16,
            num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, image_size=64, patch_size=16));
            HGNetV2Backbone(HGNetV2Config(embedding_size=8, hidden_sizes=[8, 8, 16, 16], stem_channels=[3, 8, 8],
            stage_in_channels=[8, 8, 8, 16], stage_mid_channels=[4, 4, 4, 4], stage_out_channels=[8, 8, 16, 16],
            stage_num_blocks=[1, 1, 1, 1], depths=[1, 1, 1, 1]));
            RTDetrResNetBackbone(RTDetrResNetConfig(embedding_size=8, hidden_sizes=[8, 8, 16, 16], depths=[1, 1, 1,
            1], out_features=['stage2', 'stage4']));
            DepthAnythingForDepthEstimation(DepthAnythingConfig(backbone_config=Dinov2Config(hidden_size=16,
            num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, image_size=64, patch_size=16,
            out_features=['stage1', 'stage2', 'stage1', 'stage2'][:2], reshape_hidden_states=False),
            reassemble_hidden_size=16, patch_size=16, neck_hidden_sizes=[8, 8], reassemble_factors=[2, 1],
            fusion_hidden_size=8)); BlipVisionModel(BlipVisionConfig(hidden_size=16, num_hidden_layers=2,
            num_attention_heads=2, intermediate_size=32, image_size=64, patch_size=16));
            InstructBlipVisionModel(InstructBlipVisionConfig(hidden_size=16, num_hidden_layers=2,
            num_attention_heads=2, intermediate_size=32, image_size=64, patch_size=16));
            ChineseCLIPVisionModel(ChineseCLIPVisionConfig(hidden_size=16, num_hidden_layers=2,
            num_attention_heads=2, intermediate_size=32, image_size=64, patch_size=16));
            FlavaImageModel(FlavaImageConfig(hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
            intermediate_size=32, image_size=64, patch_size=16)); DonutSwinModel(DonutSwinConfig(embed_dim=8,
            depths=[1, 2, 1], num_heads=[1, 2, 2], window_size=4, image_size=64, patch_size=4));
            MaskFormerSwinBackbone(MaskFormerSwinConfig(embed_dim=8, depths=[1, 2, 1], num_heads=[1, 2, 2],
            window_size=4, image_size=64, patch_size=4));
            MobileViTV2ForSemanticSegmentation(MobileViTV2Config(image_size=64, width_multiplier=0.25,
            aspp_out_channels=8))""",
    },
    "diffusers.models.resnet": {
        "features:12x10": """
            Downsample2D(8, True); Downsample2D(8, False); Downsample2D(8, True, padding=0); Upsample2D(8, True);
            Upsample2D(8, use_conv_transpose=True); Upsample2D(8, True, interpolate=False); FirDownsample2D(8,
            use_conv=True, out_channels=6); FirUpsample2D(8, use_conv=True, out_channels=6); FirDownsample2D(8);
            FirUpsample2D(8); KDownsample2D(); KUpsample2D(); KDownsample2D('constant')""",
    },
    "diffusers.models.unets.unet_2d_blocks": {
        "features:12x10": """
            UNetMidBlock2D(8, None, resnet_groups=2, attention_head_dim=4); AttnDownEncoderBlock2D(8, 8,
            resnet_groups=2, attention_head_dim=4); DownEncoderBlock2D(8, 8, resnet_groups=2); UpDecoderBlock2D(8,
            8, resnet_groups=2); AttnUpDecoderBlock2D(8, 8, resnet_groups=2, attention_head_dim=4);
            AutoencoderTinyBlock(8, 6, 'relu')""",
    },
}
