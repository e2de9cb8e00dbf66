#!/bin/bash
# heddle verify linear-attention and heddle bench linear-attention: right on every transport, exit codes, saved arrays.
set -u
: "${HEDDLE:?}" "${HEDDLE_BUILD:?}"
. "${HEDDLE_SOURCE:?}/tests/support/skip.sh"
. "${HEDDLE_SOURCE:?}/tests/support/says.sh"
command="verify linear-attention"

line='f64[b=2 s=37 h=6 d=16] on [sp=4]'
for method in lasp lasp2 scan; do
    for options in '--decay 0.99 --dv 24' '--decay per-head --bidirectional'; do
        # shellcheck disable=SC2086
        says "$method $options" 0 "errors in roundings: o " "$line" --method $method $options
    done
done
says "lasp traffic" 0 "sent forward 3 messages of 24576 bytes, at most 1 by a rank; backward 3 messages" \
    "$line" --method lasp
says "lasp traffic of a longer sequence" 0 "sent forward 3 messages of 24576 bytes" \
    'f64[b=2 s=301 h=6 d=16] on [sp=4]' --method lasp
says "lasp2 traffic" 0 "sent forward 12 messages of 24576 bytes, at most 3 by a rank" "$line" --method lasp2
says "scan traffic" 0 "sent forward 5 messages of 24576 bytes, at most 2 by a rank" "$line" --method scan
says "published order" 0 "receive-first" "$line" --method lasp --receive-first
says "two axes" 0 "right on" 'bf16[b=2 s=37 h=6 d=16] on [dp=2 sp=2]: b@dp,s@sp' --method scan
for transport in threads shm; do
    says "random on $transport" 0 "60 linear attention problems right on $transport" --random 60 --ranks 3 \
        --transport $transport --seed 5
done
if have_mpi; then
    says "random on mpi" 0 "30 linear attention problems" --random 30 --ranks 3 --transport mpi
    says "messages" 0 "30 linear attention problems" --random 30 --ranks 3 --transport mpi --messages
fi

says "save" 0 "right on" 'f32[b=1 s=5 h=1 d=2] on [sp=2]' --method scan --dv 3 --save "$folder/parts"
for name in q k v do o dq dk dv; do
    width=2
    case $name in v | do | o | dv) width=3 ;; esac
    head -c 120 "$folder/parts/$name.npy" | tr -d '\0' | grep -aqF "'descr': '<f4', 'fortran_order': False, 'shape': (1, 5, 1, $width,)" ||
        { echo "FAILED: $name.npy"; failed=1; }
done

says "both ways" 2 "--causal and --bidirectional contradict one another" "$line" --causal --bidirectional
says "decay" 2 "--decay wants a number above 0 and at most 1, or per-head, not '1.5'" "$line" --decay 1.5
says "method" 2 "no linear attention method is called 'ring'; there are local lasp lasp2 scan" "$line" --method ring
says "local" 2 "local wants dim 's' whole, it is sharded over 4 ranks" "$line" --method local
says "order" 2 "receive_first is an order of causal lasp" "$line" --method scan --receive-first
says "dtype" 2 "linear attention stores f32, bf16 or f64, not i32" 'i32[b=2 s=37 h=6 d=16] on [sp=4]'
says "dims" 2 "wants the dims batch, sequence, heads" 'f32[b=2 s=37 h=6] on [sp=4]'
says "width" 2 "dim 'd' is sharded over mesh axis sp" 'f32[b=2 s=37 h=6 d=16] on [sp=4]: d@sp'
says "ranks" 2 "--ranks 3, but the mesh of the problem has 4" "$line" --ranks 3
says "nothing" 2 "wants either one problem or --random"
says "option" 2 "'--what': unknown option" "$line" --what 1
says "memory" 2 "bytes on 4 ranks, available are" 'f32[b=1 s=1000000000 h=64 d=128] on [sp=4]'
says "drawn method" 0 "20 linear attention problems right" --random 20 --ranks 2 --method scan --bidirectional
says "no such draw" 2 "none is such as the options ask for" --random 2 --ranks 2 --method scan --receive-first
says "drawn width" 2 "none is such as the options ask for" --random 2 --ranks 2 --dv 1000
says "decay of draws" 2 "--decay is of one problem, not of --random" --random 2 --decay 0.5
says "help" 0 "usage: heddle verify linear-attention" --help
command="bench linear-attention"
says "bench help" 0 "usage: heddle bench linear-attention" --help
says "bench nothing" 2 "wants"
for pass in '' --backward; do
    # shellcheck disable=SC2086
    says "bench $pass" 0 '"bytes_per_rank": 4096, "messages_per_rank": 1, "serial_steps": 1,' \
        'f32[b=1 s=256 h=1 d=32] on [sp=2]' --method lasp --iterations 10 --json $pass
    for key in min_ms median_ms local_min_ms peak_bytes overlap; do
        grep -q "\"$key\": " "$folder/out" || { echo "FAILED: bench has no $key"; failed=1; }
    done
done
says "as many calls as there may be samples" 2 "--iterations wants a whole number from 1 to 100000, not '100001'" \
    "$line" --iterations 100001
# What one rank does alone takes longer than the others may wait for one another, and no step of it does: a tenth of a
# second where a sanitizer slows it down.
deadline=$(HEDDLE_TEST_TIME_SCALE=1 scaled 1)
says "longer alone than the deadline" 0 '"samples"' 'f32[b=1 s=4096 h=2 d=64] on [sp=2]' --seconds $((2 * deadline)) \
    --deadline $deadline --json
exit $failed
