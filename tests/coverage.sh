#!/usr/bin/env bash
# Which lines and branches the tests execute, room by room (gcov), as the table of docs/testing.md.
#
#     tests/coverage.sh                   the tiers of tests/run.sh that need one machine
#     tests/coverage.sh quick ranks       these tiers
#     tests/coverage.sh --table           no run: from the counts of the last one
#
# Ranks that are killed, by a test or by mpirun, take their counts with them.
set -uo pipefail
cd "$(dirname "$0")/.."
folder=$PWD/build-coverage
if [ "${1:-}" != --table ]; then
    [ $# -gt 0 ] || set -- quick ranks fault cli
    find "$folder" -name '*.gcda' -delete 2>/dev/null
    HEDDLE_TEST_TIME_SCALE=${HEDDLE_TEST_TIME_SCALE:-5} bash tests/run.sh --preset coverage "$@" | tail -n 40
fi
python3 - "$PWD" "$folder" <<'PY'
import collections, glob, json, os, subprocess, sys

root, folder = sys.argv[1:]
lines = collections.defaultdict(int)
branches = collections.defaultdict(int)
os.chdir(folder)
for counts in glob.glob(folder + "/CMakeFiles/**/*.gcno", recursive=True):
    text = subprocess.run(["gcov", "--json-format", "--stdout", "--branch-probabilities", counts], capture_output=True,
                          text=True).stdout
    for report in filter(None, text.split("\n")):
        report = json.loads(report)
        for file in report["files"]:
            path = os.path.normpath(os.path.join(report["current_working_directory"], file["file"]))
            if not path.startswith(root + "/"):
                continue
            path = path[len(root) + 1:]
            for line in file["lines"]:
                lines[path, line["line_number"]] += line["count"]
                for i, branch in enumerate(line["branches"]):
                    branches[path, line["line_number"], i] += branch["count"]


def row(name, inside):
    def share(counts):
        counted = [n for key, n in counts.items() if inside(key[0])]
        return f"{len(counted)} | {100 * sum(n > 0 for n in counted) / max(1, len(counted)):.1f} %"
    print(f"| {name} | {share(lines)} | {share(branches)} |")


rooms = sorted({os.path.dirname(key[0]) for key in lines if key[0].startswith(("runtime/", "kernels", "planner/"))})
print("| room | lines | executed | branches | taken |\n|---|---|---|---|---|")
for room in rooms:
    row(f"`{room}`", lambda path: os.path.dirname(path) == room)
row("all", lambda path: os.path.dirname(path) in rooms)
PY
