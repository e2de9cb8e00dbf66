"""Small random configurations of models that nobody here wrote, with the arguments of a forward of each.

Extents differ from one another and from the channels: an axis that is as long as a channel is not told from it."""
import diffusers
import torch
from diffusers.models import embeddings

try:
    import transformers
except ImportError:  # its models are left out
    transformers = None

R = torch.randn
ONE = torch.ones(1)
JOINT = dict(patch_size=1, in_channels=4, num_layers=1, num_single_layers=1, attention_head_dim=16,
             num_attention_heads=4, joint_attention_dim=12)
TOKENS = dict(hidden_states=R(1, 15, 4), encoder_hidden_states=R(1, 7, 12), timestep=0.3 * ONE)


def places(axes):
    return dict(img_ids=torch.rand(15, axes).mul(9).round(), txt_ids=torch.zeros(7, axes))


def picture(width=10, words=7, channels=12):
    return dict(hidden_states=R(1, 4, 6, width), timestep=torch.tensor([3]),
                encoder_hidden_states=R(1, words, channels))


def clip(words=13, channels=16):
    return dict(picture(10, words, channels), hidden_states=R(1, 4, 3, 6, 10))


def bria():
    return diffusers.BriaTransformer2DModel(**JOINT, axes_dims_rope=[4, 4, 8]), {**TOKENS, **places(3)}


def bria_fibo():
    return diffusers.BriaFiboTransformer2DModel(**JOINT, axes_dims_rope=[4, 4, 8], text_encoder_dim=32), {
        **TOKENS, **places(3), "text_encoder_layers": [R(1, 7, 32), R(1, 7, 32)]}


def longcat_image():
    return diffusers.LongCatImageTransformer2DModel(**JOINT, axes_dims_rope=[4, 4, 8], pooled_projection_dim=12), {
        **TOKENS, **places(3)}


def flux2():
    return diffusers.Flux2Transformer2DModel(**JOINT, axes_dims_rope=(4, 4, 4, 4), timestep_guidance_channels=8,
                                             mlp_ratio=2.0), {**TOKENS, **places(4), "guidance": ONE}


def cogview(kind, **more):
    return lambda: (kind(
        patch_size=2, in_channels=4, out_channels=4, num_layers=2, attention_head_dim=8, num_attention_heads=4,
        text_embed_dim=12, time_embed_dim=16, condition_dim=8, pos_embed_max_size=8, sample_size=8, **more), dict(
        picture(), original_size=torch.tensor([[48.0, 80.0]]), target_size=torch.tensor([[48.0, 80.0]]),
        crop_coords=torch.zeros(1, 2)))


def kandinsky5():
    f, h, w = 5, 6, 14
    return diffusers.Kandinsky5Transformer3DModel(
        in_visual_dim=9, in_text_dim=16, in_text_dim2=12, time_dim=16, out_visual_dim=4, model_dim=32, ff_dim=48,
        num_text_blocks=1, num_visual_blocks=2, axes_dims=(4, 6, 6)), dict(
        hidden_states=R(1, f, h, w, 9), encoder_hidden_states=R(1, 13, 16), timestep=3 * ONE,
        pooled_projections=R(1, 12), text_rope_pos=torch.arange(13),
        visual_rope_pos=[torch.arange(f), torch.arange(h // 2), torch.arange(w // 2)])


def stable_audio():
    rotary = embeddings.get_1d_rotary_pos_embed(4, 12, use_real=True, repeat_interleave_real=False)
    return diffusers.StableAudioDiTModel(
        sample_size=16, in_channels=4, num_layers=2, attention_head_dim=8, num_attention_heads=4,
        num_key_value_attention_heads=2, out_channels=4, cross_attention_dim=16, time_proj_dim=8,
        global_states_input_dim=12, cross_attention_input_dim=16), dict(
        hidden_states=R(1, 4, 11), timestep=3 * ONE, encoder_hidden_states=R(1, 7, 16),
        global_hidden_states=R(1, 1, 12), rotary_embedding=rotary)


def hunyuandit():
    rotary = embeddings.get_2d_rotary_pos_embed(8, ((0, 0), (3, 5)), (3, 5), output_type="pt")
    return diffusers.HunyuanDiT2DModel(
        num_attention_heads=4, attention_head_dim=8, in_channels=4, patch_size=2, sample_size=16, hidden_size=32,
        num_layers=4, mlp_ratio=2.0, cross_attention_dim=12, cross_attention_dim_t5=16, pooled_projection_dim=8,
        text_len=5, text_len_t5=6), dict(
        picture(10, 5), timestep=3 * ONE, text_embedding_mask=torch.ones(1, 5), encoder_hidden_states_t5=R(1, 6, 16),
        text_embedding_mask_t5=torch.ones(1, 6), image_meta_size=torch.tensor([[48.0, 80.0, 48.0, 80.0, 0.0, 0.0]]),
        style=torch.tensor([0]), image_rotary_emb=rotary, return_dict=False)


def ltx2():
    return diffusers.LTX2VideoTransformer3DModel(
        in_channels=4, out_channels=4, num_attention_heads=4, attention_head_dim=12, cross_attention_dim=48,
        audio_in_channels=4, audio_out_channels=4, audio_num_attention_heads=4, audio_attention_head_dim=8,
        audio_cross_attention_dim=32, num_layers=1, caption_channels=16), dict(
        hidden_states=R(1, 30, 4), audio_hidden_states=R(1, 7, 4), encoder_hidden_states=R(1, 5, 16),
        audio_encoder_hidden_states=R(1, 5, 16), timestep=torch.full((1, 1), 3.0), num_frames=2, height=3, width=5,
        audio_num_frames=7)


def hunyuanvideo15():
    return diffusers.HunyuanVideo15Transformer3DModel(
        in_channels=9, out_channels=4, num_attention_heads=2, attention_head_dim=16, num_layers=1, task_type="t2v",
        num_refiner_layers=1, mlp_ratio=2.0, text_embed_dim=12, text_embed_2_dim=12, image_embed_dim=12,
        rope_axes_dim=(4, 6, 6)), dict(
        hidden_states=R(1, 9, 3, 5, 7), timestep=3 * ONE, encoder_hidden_states=R(1, 11, 12),
        encoder_attention_mask=torch.ones(1, 11), encoder_hidden_states_2=R(1, 6, 12),
        encoder_attention_mask_2=torch.ones(1, 6), image_embeds=torch.zeros(1, 4, 12))


def hunyuanimage():
    return diffusers.HunyuanImageTransformer2DModel(
        in_channels=4, out_channels=4, num_attention_heads=2, attention_head_dim=16, num_layers=1, num_single_layers=1,
        num_refiner_layers=1, mlp_ratio=2.0, text_embed_dim=12, rope_axes_dim=(8, 8)), dict(
        hidden_states=R(1, 4, 5, 7), timestep=3 * ONE, encoder_hidden_states=R(1, 11, 12),
        encoder_attention_mask=torch.ones(1, 11))


def easyanimate():
    return diffusers.EasyAnimateTransformer3DModel(
        num_attention_heads=2, attention_head_dim=16, in_channels=4, out_channels=4, patch_size=2, sample_width=8,
        sample_height=8, num_layers=2, mmdit_layers=2, time_embed_dim=8, text_embed_dim=12), clip(7, 12)


def motif():
    return diffusers.MotifVideoTransformer3DModel(
        in_channels=4, out_channels=4, num_attention_heads=2, attention_head_dim=16, num_layers=1, num_single_layers=1,
        mlp_ratio=2.0, text_embed_dim=12, rope_axes_dim=(4, 6, 6)), clip(7, 12)


def wan_like(kind, more, **given):
    return lambda: (kind(
        num_attention_heads=2, attention_head_dim=12, in_channels=4, out_channels=4, text_dim=16, freq_dim=32,
        ffn_dim=64, num_layers=2, rope_max_seq_len=64, **more), dict(clip(), **given))


def pixart():
    return diffusers.PixArtTransformer2DModel(
        num_attention_heads=4, attention_head_dim=8, in_channels=4, out_channels=8, num_layers=2,
        cross_attention_dim=32, sample_size=16, caption_channels=12, use_additional_conditions=False), dict(
        picture(), added_cond_kwargs={"resolution": None, "aspect_ratio": None})


def lumina_next():
    return diffusers.LuminaNextDiT2DModel(
        sample_size=16, patch_size=2, in_channels=4, hidden_size=32, num_layers=2, num_attention_heads=4,
        num_kv_heads=2, multiple_of=8, cross_attention_dim=12, learn_sigma=False), dict(
        picture(), timestep=0.3 * ONE, encoder_mask=torch.ones(1, 7), cross_attention_kwargs={},
        image_rotary_emb=embeddings.get_2d_rotary_pos_embed_lumina(8, 64, 64))


def lumina2():
    return diffusers.Lumina2Transformer2DModel(
        sample_size=16, patch_size=2, in_channels=4, hidden_size=32, num_layers=2, num_refiner_layers=1,
        num_attention_heads=4, num_kv_heads=2, multiple_of=8, axes_dim_rope=(4, 2, 2), axes_lens=(30, 16, 16),
        cap_feat_dim=12), dict(picture(), timestep=0.3 * ONE, encoder_attention_mask=torch.ones(1, 7).bool())


def auraflow():
    return diffusers.AuraFlowTransformer2DModel(
        sample_size=16, patch_size=2, in_channels=4, num_mmdit_layers=1, num_single_dit_layers=1, attention_head_dim=8,
        num_attention_heads=4, joint_attention_dim=12, caption_projection_dim=32, out_channels=4,
        pos_embed_max_size=64), dict(picture(), timestep=0.3 * ONE)


def sana():
    return diffusers.SanaTransformer2DModel(
        in_channels=4, out_channels=4, num_attention_heads=2, attention_head_dim=12, num_layers=2,
        num_cross_attention_heads=2, cross_attention_head_dim=12, cross_attention_dim=24, caption_channels=16,
        mlp_ratio=2.0, sample_size=8, patch_size=1), dict(picture(10, 13, 16), hidden_states=R(1, 4, 5, 7))


def prx():
    return diffusers.PRXTransformer2DModel(in_channels=4, patch_size=2, context_in_dim=12, hidden_size=32,
                                           mlp_ratio=2.0, num_heads=4, depth=2, axes_dim=[4, 4]), dict(
        picture(), timestep=0.3 * ONE)


def dit():
    return diffusers.DiTTransformer2DModel(
        num_attention_heads=4, attention_head_dim=8, in_channels=4, out_channels=8, num_layers=2, sample_size=10,
        num_embeds_ada_norm=10), dict(hidden_states=R(2, 4, 10, 10), timestep=torch.tensor([3, 5]),
                                      class_labels=torch.tensor([1, 2]))


def ernie_image():
    return diffusers.ErnieImageTransformer2DModel(
        hidden_size=32, num_attention_heads=2, num_layers=2, ffn_hidden_size=48, in_channels=4, out_channels=4,
        text_in_dim=12, rope_axes_dim=(4, 6, 6)), dict(hidden_states=R(1, 4, 5, 7), timestep=3 * ONE,
                                                       text_bth=R(1, 9, 12), text_lens=torch.tensor([9]))


def ace_step():
    return diffusers.AceStepTransformer1DModel(
        hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        head_dim=8, in_channels=12, audio_acoustic_hidden_dim=4, patch_size=2, sliding_window=4), dict(
        hidden_states=R(1, 14, 4), timestep=0.3 * ONE, timestep_r=0.3 * ONE, encoder_hidden_states=R(1, 7, 32),
        context_latents=R(1, 14, 8))


def hidream():
    return diffusers.HiDreamImageTransformer2DModel(
        patch_size=2, in_channels=4, out_channels=4, num_layers=1, num_single_layers=1, attention_head_dim=8,
        num_attention_heads=4, caption_channels=[20, 16], text_emb_dim=20, axes_dims_rope=(4, 2, 2),
        max_resolution=(16, 16), llama_layers=[0, 1], force_inference_output=True), dict(
        hidden_states=R(1, 4, 12, 12), timesteps=torch.tensor([3]), encoder_hidden_states_t5=R(1, 7, 20),
        encoder_hidden_states_llama3=R(2, 1, 11, 16), pooled_embeds=R(1, 20))


def unet():
    return diffusers.UNet2DConditionModel(
        sample_size=16, down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"), layers_per_block=1,
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"), block_out_channels=(8, 16), norm_num_groups=4,
        cross_attention_dim=12, attention_head_dim=4), dict(
        sample=R(1, 4, 10, 20), timestep=torch.tensor([3]), encoder_hidden_states=R(1, 7, 12))


def wan_decoder():
    return diffusers.AutoencoderKLWan(
        base_dim=4, z_dim=4, dim_mult=[1, 1], num_res_blocks=1, temperal_downsample=[False], latents_mean=[0.0] * 4,
        latents_std=[1.0] * 4).decoder, dict(x=R(1, 4, 3, 6, 10))


def i2vgenxl():
    return diffusers.I2VGenXLUNet(
        sample_size=8, in_channels=4, out_channels=4, block_out_channels=(8, 16), norm_num_groups=2,
        cross_attention_dim=16, layers_per_block=1, attention_head_dim=4, num_attention_heads=2,
        down_block_types=("CrossAttnDownBlock3D", "DownBlock3D"),
        up_block_types=("UpBlock3D", "CrossAttnUpBlock3D")), dict(
        sample=R(2, 4, 5, 8, 12), timestep=torch.tensor([3, 3]), fps=torch.tensor([7, 7]),
        image_latents=R(2, 4, 5, 8, 12), image_embeddings=R(2, 16), encoder_hidden_states=R(2, 6, 16))


def uvit():
    return diffusers.UVit2DModel(
        hidden_size=16, cond_embed_dim=12, micro_cond_encode_dim=4, micro_cond_embed_dim=20, encoder_hidden_size=12,
        vocab_size=20, codebook_size=18, in_channels=16, block_out_channels=16, num_res_blocks=1, block_num_heads=2,
        num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, sample_size=8), dict(
        input_ids=torch.randint(18, (1, 6, 10)), encoder_hidden_states=R(1, 7, 12), pooled_text_emb=R(1, 12),
        micro_conds=R(1, 5))


def tiny_decoder():
    return diffusers.AutoencoderTiny(
        encoder_block_out_channels=(8, 8), decoder_block_out_channels=(8, 8), num_encoder_blocks=(1, 1),
        num_decoder_blocks=(1, 1)).decoder, dict(x=R(2, 4, 7, 9))


def sound_decoder():
    return diffusers.AutoencoderOobleck(
        encoder_hidden_size=8, downsampling_ratios=[2, 2], channel_multiples=[1, 2], decoder_channels=8,
        decoder_input_channels=4, audio_channels=2).decoder, dict(hidden_state=R(2, 4, 13))


DIFFUSION = {
    "bria": bria, "bria-fibo": bria_fibo, "longcat-image": longcat_image, "flux2": flux2,
    "cogview3plus": cogview(diffusers.CogView3PlusTransformer2DModel),
    "cogview4": cogview(diffusers.CogView4Transformer2DModel, rope_axes_dim=(8, 8)), "kandinsky5": kandinsky5,
    "stable-audio": stable_audio, "hunyuandit": hunyuandit, "ltx2": ltx2, "hunyuanvideo15": hunyuanvideo15,
    "hunyuanimage": hunyuanimage, "easyanimate": easyanimate, "motif": motif,
    "skyreels": wan_like(diffusers.SkyReelsV2Transformer3DModel, {}),
    "wan-vace": wan_like(diffusers.WanVACETransformer3DModel, dict(vace_layers=[0], vace_in_channels=8),
                         control_hidden_states=R(1, 8, 3, 6, 10), control_hidden_states_scale=ONE),
    "pixart": pixart, "lumina-next": lumina_next, "lumina2": lumina2, "auraflow": auraflow, "sana": sana, "prx": prx,
    "dit": dit, "ernie-image": ernie_image, "ace-step": ace_step, "hidream": hidream, "unet": unet,
    "wan-decoder": wan_decoder, "i2vgenxl": i2vgenxl, "uvit": uvit, "tiny-decoder": tiny_decoder,
    "sound-decoder": sound_decoder}

SMALL = dict(hidden_size=24, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32)
WORDS = dict(SMALL, vocab_size=50)


def language(name, **more):
    config = getattr(transformers, f"{name}Config")(**{**WORDS, **more})
    words = torch.randint(3, 33, (2, 11))
    hidden = torch.tensor([[1] * 11, [0] * 3 + [1] * 8])
    return lambda: (getattr(transformers, f"{name}Model")(config), dict(input_ids=words, attention_mask=hidden))


def seen(name, **more):
    config = getattr(transformers, f"{name}Config")(**{**SMALL, "image_size": 20, "patch_size": 4, **more})
    return lambda: (getattr(transformers, f"{name}Model")(config), dict(pixel_values=R(2, 3, 20, 20)))


def whisper():
    kind = dict(d_model=24, encoder_layers=2, decoder_layers=2, encoder_attention_heads=2, decoder_attention_heads=2,
                encoder_ffn_dim=32, decoder_ffn_dim=32, num_mel_bins=10, max_source_positions=14, pad_token_id=0,
                max_target_positions=20, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1, use_cache=False)
    return transformers.WhisperModel(transformers.WhisperConfig(vocab_size=50, **kind)), dict(
        input_features=R(2, 10, 28), decoder_input_ids=torch.randint(50, (2, 9)), use_cache=False)


def pyramid(name, **more):
    config = getattr(transformers, f"{name}Config")(hidden_sizes=[8, 16], depths=[1, 1], **more)
    return lambda: (getattr(transformers, f"{name}Model")(config), dict(pixel_values=R(2, 3, 16, 24)))


def wav2vec2():
    return transformers.Wav2Vec2Model(transformers.Wav2Vec2Config(
        **WORDS, conv_dim=(12, 12), conv_stride=(2, 2), conv_kernel=(3, 2), num_conv_pos_embeddings=4,
        num_conv_pos_embedding_groups=2, num_feat_extract_layers=2, mask_time_prob=0.0)), dict(input_values=R(2, 62))


def folding():
    """Blocks of ESMFold: a sequence beside pairs of its residues."""
    from transformers.models.esm.configuration_esm import TrunkConfig
    from transformers.models.esm.modeling_esmfold import EsmFoldTriangularSelfAttentionBlock
    config = TrunkConfig(num_blocks=2, sequence_state_dim=16, pairwise_state_dim=8, sequence_head_width=8,
                         pairwise_head_width=4, position_bins=4, dropout=0.0, layer_drop=0.0)

    class Folding(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = torch.nn.ModuleList(EsmFoldTriangularSelfAttentionBlock(config) for _ in range(2))

        def forward(self, rows, pairs):
            for block in self.blocks:
                rows, pairs = block(rows, pairs)
            return rows, pairs
    return Folding(), dict(rows=R(1, 7, 16), pairs=R(1, 7, 7, 8))


def others():
    """Of transformers."""
    return {"gpt2": language("GPT2", n_embd=24, n_layer=2, n_head=2, n_positions=32, use_cache=False),
            "llama": language("Llama", num_key_value_heads=1, use_cache=False),
            "qwen3": language("Qwen3", num_key_value_heads=1, head_dim=12, use_cache=False),
            "bert": language("Bert"), "esm": language("Esm", pad_token_id=1, mask_token_id=32, token_dropout=False,
                                                      position_embedding_type="rotary"),
            "mistral": language("Mistral", num_key_value_heads=1, sliding_window=4, use_cache=False),
            "gemma2": language("Gemma2", num_key_value_heads=1, head_dim=12, sliding_window=4, use_cache=False),
            "mixtral": language("Mixtral", num_key_value_heads=1, num_local_experts=3, use_cache=False),
            "albert": language("Albert", embedding_size=20),
            "mamba": language("Mamba", state_size=4, use_cache=False), "wav2vec2": wav2vec2,
            "convnext": pyramid("ConvNext", num_stages=2, patch_size=2),
            "poolformer": pyramid("PoolFormer", num_encoder_blocks=2, patch_sizes=[3, 3], strides=[2, 2],
                                  padding=[1, 1], mlp_ratio=2.0),
            "vit": seen("ViT"), "dinov2": seen("Dinov2", mlp_ratio=2), "whisper": whisper, "folding": folding}


ZOO = {**DIFFUSION, **(others() if transformers else {})}
