# Sourced by test scripts.
#
#     scaled N                      N of a machine of its own: more where other work shares the cores, and by
#                                   HEDDLE_TEST_TIME_SCALE (in C time_limit.h, in Python golden/within.py)
#     within SECONDS COMMAND...     ends it after so many, scaled
scaled() {
    awk -v n="$1" -v scale="${HEDDLE_TEST_TIME_SCALE:-1}" -v cores="$(getconf _NPROCESSORS_ONLN)" \
        '{ printf "%.0f\n", n * scale * ($1 > cores ? $1 / cores : 1) }' /proc/loadavg
}

within() {
    timeout "$(scaled "$1")" "${@:2}"
}
