#!/usr/bin/env bash
# heddle plan --analyze: a plan that is run, beside what was predicted; what cannot be run is refused.
. "${HEDDLE_SOURCE:?}/tests/support/skip.sh"
. "$HEDDLE_SOURCE/tests/support/says.sh"
export XDG_CONFIG_HOME=/nonexistent
tiny=$HEDDLE_SOURCE/tests/golden/tiny.yaml

says "table" 0 "times measured of the slowest one, in the fastest of 5 passes" plan "$tiny" --mesh sp=2 --analyze
says "no block" 2 "can be planned, but not run" plan flux.1-dev --mesh sp=2 --analyze
says "a step" 2 "goes without --training (--backward)" plan "$tiny" --mesh sp=2 --analyze --training
says "to a file" 2 "goes without --output" plan "$tiny" --mesh sp=2 --analyze -o "$folder/a.json"
says "transport" 2 "unknown transport" plan "$tiny" --mesh sp=2 --analyze --transport carrier-pigeon
small=(plan "$tiny" --mesh sp=2 --size t=4,s=6 --layers 1 --analyze --candidates)
says "candidates" 0 "2 of 36 ways were run" "${small[@]}" 2 --transport shm
says "fewer candidates" 0 "1 of 6 ways was run" "${small[@]}" 1 --force t.attn=t@sp/ring
says "not run" 2 "goes with --analyze" plan "$tiny" --mesh sp=2 --candidates 2
if have_mpi; then
    says "mpi" 0 "memory measured: " plan "$tiny" --mesh sp=2 --analyze --transport mpi
fi
if command -v python3 >/dev/null; then
    python3 "$HEDDLE_SOURCE/tests/golden/analyze.py" || failed=1
else
    not_here python "no python3: JSON is not read back"
fi
exit $failed
