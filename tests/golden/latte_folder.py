"""Write a small Latte as diffusers would: latte_folder.py FOLDER [NAME=VALUE ...]

dtype=F32|F16|BF16|mixed; shards=N writes N files and an index; frames, side, layers, heads, head_dim, out, bias=0|1 are
those of config.json. config.KEY=JSON puts another value into config.json alone (JSON "-" leaves the key out).
change=missing|extra|shape|type|cut|huge|twice|place makes the files wrong on purpose.
"""
import json
import os
import random
import struct
import sys
from array import array

folder = sys.argv[1]
told = dict(word.split("=", 1) for word in sys.argv[2:])
change = told.get("change", "")
heads, head_dim, layers = (int(told.get(name, n)) for name, n in (("heads", 3), ("head_dim", 8), ("layers", 2)))
frames, side, out, bias = (int(told.get(name, n)) for name, n in (("frames", 5), ("side", 10), ("out", 8), ("bias", 1)))
c, channels, patch, caption = heads * head_dim, 4, 2, 16

config = {"_class_name": "LatteTransformer3DModel", "_diffusers_version": "0.30.0", "activation_fn": "gelu-approximate",
          "attention_bias": bool(bias), "attention_head_dim": head_dim, "caption_channels": caption,
          "cross_attention_dim": c, "dropout": 0.0, "in_channels": channels, "norm_elementwise_affine": False,
          "norm_eps": 1e-06, "norm_type": "ada_norm_single", "num_attention_heads": heads, "num_embeds_ada_norm": 1000,
          "num_layers": layers, "out_channels": out, "patch_size": patch, "sample_size": side, "video_length": frames}
for name, value in told.items():
    if name.startswith("config."):
        config[name[7:]] = value if value == "-" else json.loads(value)

shapes = {}


def linear(name, rows, columns, has_bias=True, extra=()):
    shapes[name + ".weight"] = [rows, columns, *extra]
    if has_bias:
        shapes[name + ".bias"] = [rows]


linear("pos_embed.proj", c, channels, extra=(patch, patch))
linear("adaln_single.emb.timestep_embedder.linear_1", c, 256)
linear("adaln_single.emb.timestep_embedder.linear_2", c, c)
linear("adaln_single.linear", 6 * c, c)
linear("caption_projection.linear_1", c, caption)
linear("caption_projection.linear_2", c, c)
for layer in range(layers):
    for blocks, attentions in (("transformer_blocks", ("attn1", "attn2")), ("temporal_transformer_blocks", ("attn1",))):
        for attention in attentions:
            for part in ("to_q", "to_k", "to_v"):
                linear(f"{blocks}.{layer}.{attention}.{part}", c, c, bias)
            linear(f"{blocks}.{layer}.{attention}.to_out.0", c, c)
        linear(f"{blocks}.{layer}.ff.net.0.proj", 4 * c, c)
        linear(f"{blocks}.{layer}.ff.net.2", c, 4 * c)
        shapes[f"{blocks}.{layer}.scale_shift_table"] = [6, c]
shapes["scale_shift_table"] = [2, c]
linear("proj_out", patch * patch * out, c)

victim = "temporal_transformer_blocks.1.ff.net.2.weight"
random.seed(7)
tensors = {}
for number, (name, shape) in enumerate(shapes.items()):
    count = 1
    for extent in shape:
        count *= extent
    reach = 0.5 if "table" in name else 0.2 if name.endswith("bias") else (3 / (count / shape[0])) ** 0.5
    values = array("f", (random.uniform(-reach, reach) for _ in range(count)))
    dtype = told.get("dtype", "F32")
    dtype = ("F32", "F16", "BF16")[number % 3] if dtype == "mixed" else dtype
    raw = values.tobytes()
    if dtype == "F16":
        raw = struct.pack(f"<{count}e", *values)
    elif dtype == "BF16":
        raw = b"".join(raw[i + 2:i + 4] for i in range(0, len(raw), 4))
    if name == victim:
        if change == "missing":
            continue
        if change == "shape":
            shape = shape[::-1]
        if change == "type":
            dtype, raw = "I64", bytes(8 * count)
    tensors[name] = (dtype, shape, raw)
if change == "extra":
    tensors["caption_projection.y_embedding"] = ("F32", [2], bytes(8))


def write(path, names):
    header, data = {"__metadata__": {"format": "pt"}}, bytearray()
    for name in names:
        dtype, shape, raw = tensors[name]
        if change == "huge" and name == victim:
            shape = [1 << 40, 1 << 40]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write((struct.pack("<Q", len(text)) + text + data)[:-100 if change == "cut" else None])


os.makedirs(folder, exist_ok=True)
with open(os.path.join(folder, "config.json"), "w") as file:
    json.dump({key: value for key, value in config.items() if value != "-"}, file, indent=2)
shards, names = int(told.get("shards", 0)), list(tensors)
if shards == 0:
    write(os.path.join(folder, "diffusion_pytorch_model.safetensors"), names)
else:
    places = {}
    for i in range(shards):
        file = f"diffusion_pytorch_model-{i + 1:05}-of-{shards:05}.safetensors"
        mine = names[i::shards] + ([names[0]] if change == "twice" and i == 1 else [])
        write(os.path.join(folder, file), mine)
        places |= {name: file for name in names[i::shards]}
    if change == "place":
        places[names[0]] = places[names[1]]
    with open(os.path.join(folder, "diffusion_pytorch_model.safetensors.index.json"), "w") as file:
        json.dump({"metadata": {"total_size": 1}, "weight_map": places}, file)
