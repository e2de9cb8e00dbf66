#!/usr/bin/env bash
# golden/cuda_toolkit for every architecture that the library is built for.
set -u
HEDDLE_CUDA_ALL=1 exec bash "${HEDDLE_SOURCE:?}/tests/golden/cuda_toolkit.sh"
