#!/usr/bin/env bash
# golden/cuda_toolkit for every architecture that the library is built for; in the tier's short form for the oldest alone, of
# kernels that have between them every instruction of kernels/cuda/lang.h and warp.h that is not of every architecture.
set -u
archs="80 90 100" kernels=""
[ "${HEDDLE_LONG_PERCENT:-100}" -ge 50 ] || archs=80 kernels="attention move"
HEDDLE_CUDA_ARCHS=$archs HEDDLE_CUDA_KERNELS=$kernels exec bash "${HEDDLE_SOURCE:?}/tests/golden/cuda_toolkit.sh"
