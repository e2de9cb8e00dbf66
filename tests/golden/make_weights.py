"""Write seeded weights for tiny.yaml as safetensors: make_weights.py FILE CHANNELS LAYERS [CHANGE]

CHANGE makes the file wrong on purpose: "shape" (one matrix transposed), "missing" (one tensor left out), "dtype" (one
tensor in I64).
"""
import json
import random
import struct
import sys
from array import array

path, channels, layers = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
change = sys.argv[4] if len(sys.argv) > 4 else ""
c, head = channels, channels // 4
attention = {"qkv.weight": [3 * c, c], "qkv.bias": [3 * c], "proj.weight": [c, c], "proj.bias": [c],
             "q_norm.weight": [head], "k_norm.weight": [head]}
cross = {"q_linear.weight": [c, c], "q_linear.bias": [c], "kv_linear.weight": [2 * c, c], "kv_linear.bias": [2 * c],
         "proj.weight": [c, c], "proj.bias": [c]}
mlp = {"fc1.weight": [4 * c, c], "fc1.bias": [4 * c], "fc2.weight": [c, 4 * c], "fc2.bias": [c]}

random.seed(5)
header, data = {"__metadata__": {"format": "pt"}}, bytearray()
for layer in range(layers):
    for stage, params in [("s.attn", attention), ("s.cross", cross), ("s.mlp", mlp),
                          ("t.attn", attention), ("t.cross", cross), ("t.mlp", mlp)]:
        for name, shape in params.items():
            key = f"blocks.{layer}.{stage}.{name}"
            wrong = key == "blocks.1.t.mlp.fc2.weight" and change
            if wrong == "missing":
                continue
            count = 1
            for extent in shape:
                count *= extent
            values = array("f", (random.uniform(-0.1, 0.1) for _ in range(count)))
            dtype, raw = "F32", values.tobytes()
            if wrong == "dtype":
                dtype, raw = "I64", bytes(8 * count)
            elif name.endswith("bias"):
                dtype, raw = "F16", struct.pack(f"<{count}e", *values)
            elif stage == "t.mlp":
                dtype, raw = "BF16", b"".join(raw[i + 2:i + 4] for i in range(0, len(raw), 4))
            header[key] = {"dtype": dtype, "shape": shape[::-1] if wrong == "shape" else shape,
                           "data_offsets": [len(data), len(data) + len(raw)]}
            data += raw
text = json.dumps(header).encode()
with open(path, "wb") as file:
    file.write(struct.pack("<Q", len(text)) + text + data)
