#!/usr/bin/env bash
# golden/cuda_toolkit for every architecture that the library is built for; in the tier's short form for the oldest alone.
set -u
archs="80 90 100"
[ "${HEDDLE_LONG_PERCENT:-100}" -ge 50 ] || archs=80
HEDDLE_CUDA_ARCHS=$archs exec bash "${HEDDLE_SOURCE:?}/tests/golden/cuda_toolkit.sh"
