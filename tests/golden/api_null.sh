#!/usr/bin/env bash
# Every public function that takes a pointer is in a table of tests/unit/test_null*.c, with as many names as it has
# pointers; that of the MPI adapter is in tests/contract/test_mpi.c.
set -u
cd "${HEDDLE_SOURCE:?}"
failed=0
count=0
while read -r name pointers; do
    count=$((count + 1))
    case $name in
    heddle_comm_from_mpi) # test_mpi.c
        grep -q "$name(NULL" tests/contract/test_mpi.c || { echo "$name: no call with NULL in tests/contract/test_mpi.c"; failed=1; }
        continue
        ;;
    heddle_cuda_free) # of libheddle_cuda, to which nothing links
        grep -q "give(NULL" tests/contract/test_on_device_pool.c || { echo "$name: no call with NULL"; failed=1; }
        continue
        ;;
    heddle_comm_from_callbacks) pointers=$((pointers - 1)) ;; # ctx is the transport's own
    heddle_comm_lend_peers) pointers=$((pointers - 1)) ;; # one is to pointers
    heddle_comm_from_nccl) pointers=$((pointers - 1)) ;; # without options it goes on to a device
    esac
    row=$(tr -d '\\\n' < tests/unit/test_null.c | grep -oE "X\($name, *\"[^\"]*\"")
    [ -n "$row" ] || row=$(tr -d '\\\n' < tests/unit/test_null2.c | grep -oE "X\($name, *\"[^\"]*\"")
    if [ -z "$row" ]; then
        echo "$name: not in the tables of tests/unit/test_null*.c"
        failed=1
        continue
    fi
    words=$(echo "$row" | sed 's/.*"\(.*\)"/\1/; s/^[!~]//' | wc -w)
    if [ "$words" != "$pointers" ]; then
        echo "$name: $words names in the table, $pointers pointers in the header"
        failed=1
    fi
done < <(cat include/heddle/*.h include/heddle/*/*.h | tr '\n' ' ' | sed 's|/\*|\n/*|g; s|\*/|*/\n|g' | grep -v '^/\*' | tr '\n' ' ' |
    grep -oE 'HEDDLE_(API|CHECKED) [^;]*;' | sed 's/__attribute__.*//' |
    awk '{ i = index($0, "("); args = substr($0, i); n = split(substr($0, 1, i - 1), word, /[ *]/);
           gsub(/\*\*/, "*", args); pointers = gsub(/\*/, "", args) + (args ~ /heddle_rank_main/);
           if (pointers > 0) print word[n], pointers }')
[ "$count" -gt 100 ] || { echo "only $count functions found in the headers"; failed=1; }
[ $failed = 0 ] && echo "NULL: $count functions with pointers, all in the tables"
exit $failed
