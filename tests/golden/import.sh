#!/usr/bin/env bash
# heddle import: config.json of diffusers transformers give the presets of those models; refusals name place and reason.
set -u
: "${HEDDLE:?}" "${HEDDLE_SOURCE:?}"
. "${HEDDLE_SOURCE:?}/tests/support/says.sh"

# What a model file says without its name, source and comments, a stage on a line.
said() { sed -E 's/ *#.*//; /^(model|source|serial_flops|  of the model|$)/d' "$1" | sed -e ':a' -e '/,$/{N;s/,\n */, /;ba' -e '}'; }
gives() { # PRESET CONFIG OPTIONS...
    local name=$1 config=$2
    shift 2
    echo "$config" >"$folder/config.json"
    "$HEDDLE" import "$folder/config.json" "$@" >"$folder/imported" || { echo "FAILED: $name is refused"; failed=1; return; }
    "$HEDDLE" presets "$name" | sed -E ':a;/^source: "[^"]*$/{N;ba};s/^source:.*//' >"$folder/preset"
    said "$folder/imported" >"$folder/a"
    said "$folder/preset" >"$folder/b"
    diff "$folder/a" "$folder/b" || { echo "FAILED: the import of $name is not its preset"; failed=1; }
}
gives hunyuanvideo '{"_class_name": "HunyuanVideoTransformer3DModel", "_diffusers_version": "0.32.0", "attention_head_dim": 128, "guidance_embeds": true, "in_channels": 16, "mlp_ratio": 4.0, "num_attention_heads": 24, "num_layers": 20, "num_refiner_layers": 2, "num_single_layers": 40, "out_channels": 16, "patch_size": 2, "patch_size_t": 1, "pooled_projection_dim": 768, "qk_norm": "rms_norm", "rope_axes_dim": [16, 56, 56], "rope_theta": 256.0, "text_embed_dim": 4096}'
gives wan2.1-14b '{"_class_name": "WanTransformer3DModel", "added_kv_proj_dim": null, "attention_head_dim": 128, "cross_attn_norm": true, "eps": 1e-06, "ffn_dim": 13824, "freq_dim": 256, "image_dim": null, "in_channels": 16, "num_attention_heads": 40, "num_layers": 40, "out_channels": 16, "patch_size": [1, 2, 2], "qk_norm": "rms_norm_across_heads", "rope_max_seq_len": 1024, "text_dim": 4096}'
gives wan2.1-1.3b '{"_class_name": "WanTransformer3DModel", "attention_head_dim": 128, "ffn_dim": 8960, "in_channels": 16, "num_attention_heads": 12, "num_layers": 30, "out_channels": 16, "patch_size": [1, 2, 2], "text_dim": 4096}' --height 480 --width 832
gives cogvideox-2b '{"_class_name": "CogVideoXTransformer3DModel", "attention_head_dim": 64, "in_channels": 16, "max_text_seq_length": 226, "num_attention_heads": 30, "num_layers": 30, "out_channels": 16, "patch_size": 2, "time_embed_dim": 512, "use_rotary_positional_embeddings": false}'
gives cogvideox-5b '{"_class_name": "CogVideoXTransformer3DModel", "attention_head_dim": 64, "in_channels": 16, "max_text_seq_length": 226, "num_attention_heads": 48, "num_layers": 42, "out_channels": 16, "patch_size": 2, "patch_size_t": null, "time_embed_dim": 512, "use_rotary_positional_embeddings": true}' --frames 49
gives cogvideox-1.5-5b '{"_class_name": "CogVideoXTransformer3DModel", "attention_head_dim": 64, "in_channels": 16, "num_attention_heads": 48, "num_layers": 42, "out_channels": 16, "patch_size": 2, "patch_size_t": 2, "use_rotary_positional_embeddings": true}' --frames 81 --height 768 --width 1360
gives consisid '{"_class_name": "ConsisIDTransformer3DModel", "attention_head_dim": 64, "cross_attn_interval": 2, "in_channels": 32, "num_attention_heads": 48, "num_layers": 42, "out_channels": 16, "patch_size": 2, "use_rotary_positional_embeddings": true}'
gives ltx-video '{"_class_name": "LTXVideoTransformer3DModel", "attention_head_dim": 64, "cross_attention_dim": 2048, "in_channels": 128, "num_attention_heads": 32, "num_layers": 28, "out_channels": 128, "patch_size": 1, "patch_size_t": 1, "qk_norm": "rms_norm_across_heads"}'
gives mochi '{"_class_name": "MochiTransformer3DModel", "attention_head_dim": 128, "in_channels": 12, "max_sequence_length": 256, "num_attention_heads": 24, "num_layers": 48, "out_channels": null, "patch_size": 2, "pooled_projection_dim": 1536, "qk_norm": "rms_norm"}'
gives flux.1-dev '{"_class_name": "FluxTransformer2DModel", "attention_head_dim": 128, "axes_dims_rope": [16, 56, 56], "guidance_embeds": true, "in_channels": 64, "joint_attention_dim": 4096, "num_attention_heads": 24, "num_layers": 19, "num_single_layers": 38, "out_channels": null, "patch_size": 1}'
gives sd3-medium '{"_class_name": "SD3Transformer2DModel", "attention_head_dim": 64, "caption_projection_dim": 1536, "in_channels": 16, "num_attention_heads": 24, "num_layers": 24, "out_channels": 16, "patch_size": 2, "pooled_projection_dim": 2048, "qk_norm": null, "sample_size": 128}'
gives qwen-image '{"_class_name": "QwenImageTransformer2DModel", "attention_head_dim": 128, "guidance_embeds": false, "in_channels": 64, "joint_attention_dim": 3584, "num_attention_heads": 24, "num_layers": 60, "out_channels": 16, "patch_size": 2}'

echo '{"_class_name": "LatteTransformer3DModel", "attention_head_dim": 72, "in_channels": 4, "num_attention_heads": 16, "num_layers": 28, "out_channels": 8, "patch_size": 2}' >"$folder/latte.json"
says "latte" 0 "  - {name: t.attn, kind: attention, over: t, heads: heads, modulate: true}" import "$folder/latte.json"
says "its final layer" 0 "final: {channels: 32}" import "$folder/latte.json"
says "its frames" 0 "  t: {size: 24, role: seq}" import "$folder/latte.json" --frames 24
"$HEDDLE" import "$folder/latte.json" -o "$folder/latte.yaml" && says "it plans" 0 "55 switches" plan "$folder/latte.yaml" --mesh sp=8 --epilogue any

bad() { # WHAT TEXT CONFIG OPTIONS...
    local what=$1 text=$2
    echo "$3" >"$folder/config.json"
    shift 3
    says "$what" 2 "$text" import "$folder/config.json" "$@"
}
# Without patch_size it is the class's; Latte's has none.
for class in Wan HunyuanVideo Mochi; do
    config="\"_class_name\": \"${class}Transformer3DModel\", \"num_attention_heads\": 12, \"attention_head_dim\": 128"
    config="$config, \"in_channels\": 16, \"num_layers\": 30, \"ffn_dim\": 8960"
    for patch in '' ', "patch_size": 2'; do
        [ $class = Wan ] && [ -n "$patch" ] && patch=', "patch_size": [1, 2, 2]'
        echo "{$config$patch}" >"$folder/$class.json"
        "$HEDDLE" import "$folder/$class.json" >"$folder/$class${patch:+.said}.yaml"
    done
    grep -q "^patch: \[1, 2, 2\]" "$folder/$class.yaml" && cmp "$folder/$class.yaml" "$folder/$class.said.yaml" ||
        { echo "FAILED the usual patch of $class"; failed=1; }
done
wan='"num_attention_heads": 12, "attention_head_dim": 128, "in_channels": 16, "num_layers": 30, "patch_size": [1, 2, 2]'
bad "unknown class" "config.json:1:17: unknown value 'WanTransformer3DModle' in '_class_name'; did you mean 'WanTransformer3DModel'?" "{\"_class_name\": \"WanTransformer3DModle\", $wan}"
bad "list of classes" "known: CogVideoXTransformer3DModel, ConsisIDTransformer3DModel, FluxTransformer2DModel" '{"_class_name": "UNet2DConditionModel"}'
bad "a pipeline" "this describes a whole pipeline; its model is described in transformer/config.json" '{"_class_name": "WanPipeline"}'
bad "no class" "there is no '_class_name'" "{$wan}"
bad "no map" "there is no '_class_name'" '[1, 2]'
bad "empty" "empty" ''
bad "cut" "config.json:" '{"_class_name": "Wan'
bad "a missing key" "the config has no 'num_layers'" '{"_class_name": "WanTransformer3DModel", "num_attention_heads": 12, "attention_head_dim": 128}'
bad "no number" "'num_attention_heads' must be a whole number" '{"_class_name": "WanTransformer3DModel", "num_attention_heads": "many"}'
bad "a patch of two" "'patch_size' must have 3 to 3 entries, found 2" '{"_class_name": "WanTransformer3DModel", "num_attention_heads": 12, "attention_head_dim": 128, "in_channels": 16, "num_layers": 30, "patch_size": [1, 2]}'
bad "an oblong patch" "'patch_size' is 2 high and 3 wide" '{"_class_name": "WanTransformer3DModel", "num_attention_heads": 12, "attention_head_dim": 128, "in_channels": 16, "num_layers": 30, "patch_size": [1, 2, 3]}'
bad "frames" "80 frames are not 1 + a multiple of 4 (77 are)" "{\"_class_name\": \"WanTransformer3DModel\", \"ffn_dim\": 8, $wan}" --frames 80
bad "pixels" "a height of 481 pixels is no multiple of the 16 of a token" "{\"_class_name\": \"WanTransformer3DModel\", \"ffn_dim\": 8, $wan}" --height 481
bad "a picture" "FluxTransformer2DModel makes pictures; 9 frames were asked for" '{"_class_name": "FluxTransformer2DModel", "num_attention_heads": 24, "attention_head_dim": 128, "in_channels": 64, "num_layers": 19}' --frames 9
bad "too many parameters" "parameters" '{"_class_name": "HunyuanVideoTransformer3DModel", "num_attention_heads": 65536, "attention_head_dim": 65536, "in_channels": 16, "num_layers": 20, "num_single_layers": 40}'
bad "no patch" "the config has no 'patch_size'" '{"_class_name": "LatteTransformer3DModel", "attention_head_dim": 72, "in_channels": 4, "num_attention_heads": 16, "num_layers": 28}'
says "no JSON" 2 "'--json': what it makes is the file of --output" import --json "$folder/Wan.json"
bad "an interval" "43 layers are no multiple of 'cross_attn_interval' 2" '{"_class_name": "ConsisIDTransformer3DModel", "num_attention_heads": 48, "attention_head_dim": 64, "in_channels": 32, "num_layers": 43}'
says "no file" 2 "cannot be opened: No such file or directory" import "$folder/none.json"
says "a folder" 2 "cannot be read: Is a directory" import "$folder"
says "nothing" 2 "import wants one config.json, found 0" import
says "no place" 2 "" import "$folder/latte.json" -o "$folder/none/m.yaml"
says "full" 1 "" import "$folder/latte.json" -o /dev/full
exit $failed
