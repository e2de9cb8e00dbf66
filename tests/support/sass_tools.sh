# Sourced by test scripts that read machine code of GPUs.
#
#     sass_tools     puts cuobjdump and nvdisasm into PATH: the toolkit's, or from the package index into a folder of the
#                    build, once; 1 where neither is to be had
#     built_kernels  the folder where the build has its kernels for GPUs
built_kernels=${HEDDLE_BUILD:?}/kernels/cuda/CMakeFiles/heddle_cuda_kernels.dir

sass_tools() {
    local own=$HEDDLE_BUILD/sass-tools
    PATH=$PATH:/usr/local/cuda/bin
    ! { command -v cuobjdump && command -v nvdisasm; } >/dev/null || return 0
    (
        flock 9 # tests that want it run at the same time
        [ ! -d "$own" ] || exit 0
        rm -rf "$own.new"
        python3 -m venv "$own.new" && "$own.new/bin/pip" install -q nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm &&
            mv "$own.new" "$own"
    ) >"$HEDDLE_BUILD/sass-tools.log" 2>&1 9>"$HEDDLE_BUILD/sass-tools.lock"
    PATH=$(dirname "$(find "$own" -name nvdisasm -type f 2>/dev/null | head -1)"):$PATH
    command -v cuobjdump >/dev/null && command -v nvdisasm >/dev/null
}
