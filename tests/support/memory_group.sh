# Sourced: memory_group NAME BYTES prints the folder of a new control group with that limit, of version 1 or 2, inside this
# process's own. Fails where none can be made.
memory_group() {
    local own folder
    own=$(sed -n 's/^[0-9]*:memory://p' /proc/self/cgroup)
    if [ -n "$own" ]; then
        folder=/sys/fs/cgroup/memory$own
        [ -d "$folder" ] || folder=/sys/fs/cgroup/memory
    else
        own=$(sed -n 's/^0:://p' /proc/self/cgroup)
        folder=/sys/fs/cgroup$own
        [ -d "$folder" ] || folder=/sys/fs/cgroup
    fi
    folder=${folder%/}/$1
    mkdir "$folder" 2>/dev/null || return 1
    for limit in memory.limit_in_bytes memory.max; do
        [ ! -w "$folder/$limit" ] || { echo "$2" >"$folder/$limit" && echo "$folder" && return 0; } 2>/dev/null
    done
    rmdir "$folder"
    return 1
}
