"""Draws the plans beside this file, by heddle draw: STDiT3 on two axes, HunyuanVideo by usp.

    python3 docs/pictures/plan.py            writes the pictures; HEDDLE names the program (build/heddle)
    python3 docs/pictures/plan.py --check    says whether they are what heddle draws (exit code 1: they are not)
"""

import os
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
MACHINE = ["--machine", "2x8xh100-nvlink+ib400"]
PICTURES = {
    "stdit3.svg": ["examples/models/stdit3-xl2.yaml", "--mesh", "cfg=2,sp=4", "--size", "b=2", "--epilogue", "any", "--method", "*=local",
                   *MACHINE],
    "hunyuanvideo.svg": ["hunyuanvideo", "--mesh", "r=2,u=8", "--epilogue", "any", *MACHINE],
}


def picture(arguments):
    heddle = os.environ.get("HEDDLE", str(ROOT / "build" / "heddle"))
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "plan.svg"
        subprocess.run([heddle, "draw", *arguments, "-o", str(file)], check=True, cwd=ROOT, timeout=60)
        return file.read_text()


if __name__ == "__main__":
    for name, arguments in PICTURES.items():
        if sys.argv[1:] == ["--check"]:
            if not (HERE / name).exists() or (HERE / name).read_text() != picture(arguments):
                sys.exit(f"{HERE / name} is not what heddle draws: run {__file__} without --check")
        else:
            (HERE / name).write_text(picture(arguments))
