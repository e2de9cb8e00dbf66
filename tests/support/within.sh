# Sourced by test scripts.
#
#     scaled N                      N of a machine of its own: more where other work shares the cores, and by
#                                   HEDDLE_TEST_TIME_SCALE (in C time_limit.h, in Python golden/within.py)
#     within SECONDS COMMAND...     ends it after so many, scaled
#     own_cores                     those of its affinity, and no more than the quota of its container (cgroup v2)
own_cores() {
    cat /sys/fs/cgroup/cpu.max 2>/dev/null | awk -v cores="$(env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc)" \
        '$1 ~ /^[0-9]/ && $1 / $2 < cores { cores = $1 / $2 } END { print cores }'
}

scaled() {
    awk -v n="$1" -v scale="${HEDDLE_TEST_TIME_SCALE:-1}" -v cores="$(own_cores)" \
        '{ printf "%.0f\n", n * scale * ($1 > cores ? $1 / cores : 1) }' /proc/loadavg
}

within() {
    timeout "$(scaled "$1")" "${@:2}"
}
