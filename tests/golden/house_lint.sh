#!/usr/bin/env bash
# Which room may know which, read off the #include lines and off the calls in the object files; one name for one
# thing; and how long functions and files may be.
#
# A room is a folder. It may include itself, the public headers and what the table lists; a listed folder means those in
# it, too, =FOLDER only itself, a file that file alone. What it may include it may call. Behind a bar: rooms whose public
# functions (heddle_) it calls besides; with +FOLDER also what that room's inner.h has, and only that.
set -u
cd "${HEDDLE_SOURCE:?}"
failed=0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
say() {
    echo "$1"
    failed=1
}

allowed() {
    case $1 in
    include/heddle | include/heddle/*) echo "" ;;
    kernels/cpu) echo "kernels runtime/base" ;;      # the table: a misspelt HEDDLE_CPU is refused
    kernels/cpu/gemm) echo "kernels runtime/base | runtime/layout" ;; # BLAS: descriptions and packed weights are allocated
    kernels/cpu/no_gemm) echo "kernels runtime/base" ;;
    kernels | kernels/*) echo "kernels" ;;
    runtime/base) echo "runtime/base" ;;
    runtime/layout) echo "runtime/base runtime/layout" ;;
    runtime/comm/ground) echo "runtime/base runtime/layout runtime/comm/ground" ;;
    runtime/comm) echo "runtime/base runtime/layout runtime/device runtime/comm/ground =runtime/comm" ;;
    runtime/comm/transport) echo "runtime/base runtime/layout runtime/device runtime/comm/ground =runtime/comm runtime/comm/transport | runtime/comm/face" ;;
    runtime/comm/transport/mpi) echo "| runtime/base =runtime/comm runtime/comm/transport" ;;
    runtime/comm/face) echo "runtime/base runtime/layout runtime/device runtime/comm" ;;
    runtime/device/cuda) echo "runtime/device/cuda kernels" ;; # a library of its own, linked to nothing else of heddle
    runtime/device/nccl) echo "runtime/device/cuda/context.h runtime/device/cuda/fail.h" ;; # likewise
    runtime/device/cublas) echo "runtime/device/cuda/context.h runtime/device/cuda/fail.h runtime/device/cublas kernels/small_float.h" ;; # likewise
    runtime/device) echo "runtime/base =runtime/device kernels" ;; # the launchers of a device
    runtime/move) echo "runtime/base =runtime/device =runtime/comm runtime/move kernels | runtime/comm/face" ;;
    runtime/reshard) echo "runtime/base runtime/layout runtime/device =runtime/comm runtime/move runtime/reshard kernels | runtime/comm/face" ;;
    runtime/attention) echo "runtime/base runtime/layout runtime/device =runtime/comm runtime/move runtime/reshard runtime/method runtime/attention kernels | runtime/comm/face" ;;
    runtime/block/device) echo "runtime/base runtime/layout =runtime/device =runtime/comm runtime/move runtime/attention runtime/block kernels | runtime/comm/face" ;;
    runtime/block) echo "runtime/base runtime/layout runtime/block kernels | =runtime/comm runtime/comm/face +runtime/attention" ;;
    runtime/session) echo "runtime/base runtime/layout runtime/device =runtime/comm runtime/move runtime/reshard runtime/session kernels/device_rows.h | runtime/comm/face runtime/schedule" ;;
    runtime/parallel) echo "runtime/base runtime/layout runtime/device =runtime/comm runtime/move runtime/reshard runtime/block runtime/parallel kernels | runtime/comm/face" ;;
    runtime/model) echo "runtime/base runtime/layout runtime/device =runtime/comm runtime/model kernels/device_rows.h | runtime/comm/face runtime/schedule +runtime/session +runtime/block" ;;
    runtime/document) echo "runtime/base runtime/document" ;;
    runtime/method) echo "runtime/base runtime/layout runtime/method" ;;
    runtime/schedule) echo "runtime/base runtime/layout runtime/document runtime/method runtime/schedule runtime/files/output.h runtime/files/output.c | runtime/reshard/sends.c" ;; # files written whole are a leaf
    runtime/files) echo "runtime/base/utf8.h runtime/files | runtime/base runtime/layout runtime/block" ;;
    runtime/verify) echo "runtime/base/memory.h runtime/base/memory.c runtime/files runtime/verify | runtime/base runtime/layout runtime/comm runtime/move runtime/reshard runtime/attention runtime/schedule runtime/block runtime/parallel runtime/model planner/model planner/machine planner/price planner/search" ;; # judges share nothing with what they judge
    planner/report) echo "runtime/base/utf8.h runtime/files runtime/verify planner/report | runtime planner/model planner/machine planner/price planner/search" ;;
    planner/draw) echo "runtime/base/utf8.h runtime/files planner/report planner/draw | runtime planner/model planner/machine planner/price planner/search" ;;
    planner/cli) echo "runtime/base/utf8.h runtime/files runtime/verify planner/report planner/draw | runtime planner/model planner/machine planner/price planner/search" ;;
    examples/latte | examples/train_video) echo "runtime/files examples/common | runtime planner" ;;
    examples | examples/*) echo "| runtime planner" ;;
    planner/model) echo "runtime/base runtime/layout runtime/document runtime/method runtime/schedule planner/model" ;;
    planner/machine) echo "runtime/base runtime/layout runtime/document planner/machine runtime/files/output.h runtime/files/output.c" ;; # written whole
    planner/price) echo "runtime/base runtime/layout runtime/document runtime/method runtime/schedule planner/model planner/machine planner/price" ;;
    planner/search) echo "runtime/base runtime/layout runtime/document runtime/method runtime/schedule planner/model planner/machine planner/price planner/search" ;;
    *) echo "unknown" ;;
    esac
}

for file in $(git ls-files 'include/*.h' 'kernels/*.[ch]' 'runtime/*.[ch]' 'planner/*.[ch]' 'examples/*.[ch]' 2>/dev/null ||
    find include kernels runtime planner examples -name '*.[ch]'); do
    folder=$(dirname "$file")
    permitted=$(allowed "$folder")
    printf '%s\t%s\n' "$folder" "$permitted" >>"$work/table"
    [ "$permitted" != unknown ] || say "$file: folder '$folder' is not in the table of this test"
    while read -r included; do
        case $included in
        */*) ;;
        *) [ -f "$folder/$included" ] || say "$file: \"$included\" is not in its folder"; continue ;;
        esac
        ok=0
        for prefix in ${permitted%%|*}; do
            case $prefix in
            =*) [ "${included%/*}" != "${prefix#=}" ] || ok=1 ;;
            *) case $included in "$prefix" | "$prefix"/*) ok=1 ;; esac ;;
            esac
        done
        case "$permitted " in *" +${included%/inner.h} "*) ok=1 ;; esac
        [ $ok = 1 ] || say "$file: may not include \"$included\""
        [ "${included%/*}" = "$folder" ] || echo "$folder ${included%/*}" >>"$work/arrows"
    done < <(sed -n 's/^[[:space:]]*#[[:space:]]*include[[:space:]]*"\([^"]*\)".*/\1/p' "$file")
done

# Only an adapter sees the header of its transport; nobody but base reads the environment; the library never prints or
# exits.
outside() { # pattern, message, allowed file pattern, folders
    while IFS= read -r hit; do
        [ -n "$hit" ] && say "$2: $hit"
    done < <(grep -rnE "$1" ${4:-include kernels runtime planner} --include='*.[ch]' --include='*.cu' | grep -vE "$3")
}
outside '#[[:space:]]*include[[:space:]]*<mpi\.h>' 'mpi.h outside the adapter' '^(include/heddle/mpi\.h|runtime/comm/transport/mpi/)'
outside '#[[:space:]]*include[[:space:]]*<(cuda|nccl|cublas)' 'CUDA header outside its room' '^(kernels/cuda/|runtime/device/(cuda|nccl|cublas)/)'
outside '#[[:space:]]*include[[:space:]]*<dnnl' 'oneDNN outside its folder' '^kernels/cpu/gemm/'
outside '\bgetenv[[:space:]]*\(' 'environment read outside base' '^(runtime/base/|planner/cli/)'
outside '(^|[^>.a-z_])(printf|fprintf|puts|perror|abort|exit)[[:space:]]*\(' 'the library prints or exits' '^(planner/cli/|planner/report/|runtime/files/|runtime/schedule/write\.c|[^:]*:[0-9]*:[[:space:]]*(/?\*|//))' 'kernels runtime planner/model planner/search'
outside '\b(TOD[O]|FIXM[E]|XX[X]|HAC[K])\b' 'unfinished mark' '^$'

# One name for one thing: types and constants of the house are said in one header.
headers=$(find include kernels runtime planner -name '*.h')
for name in $(for header in $headers; do
    sed -nE 's/^\} (hd_[a-z0-9_]+|heddle_[a-z0-9_]+);.*/\1/p
             s/^.*\b((HD|HEDDLE)_[A-Z0-9_]+) = .*/\1/p
             s/^#define ((HD|HEDDLE)_[A-Z0-9_]+).*/\1/p' "$header" | sort -u
done | sort | uniq -d); do
    say "$name is said in $(grep -lE "^\} $name;|\b$name = |^#define $name\b" $headers | tr '\n' ' ')"
done

# One kit for tests: random numbers are those of runtime/verify/random.h (tests/support/draw.h),
# checks in functions of ranks those of tests/support/check.h.
outside '6364136223846793005|bf58476d1ce4e5b9|<<=? 13;|\bs?rand(om|48)? ?\(|1103515245' 'a second random generator' '^runtime/verify/random\.h' 'tests runtime/verify'
outside '^#define CHECK\w*\(' 'a second macro of checks' '^tests/support/check\.h' tests

# Calls: what an object file wants and another one of the library, or of the same program, has.
objects() {
    find "${HEDDLE_BUILD:?}/CMakeFiles" -name '*.o' | while read -r object; do
        source=${object#*.dir/}
        [ ! -f "${source%.o}" ] || echo "$object"
    done
}
objects >"$work/objects"
[ "$(wc -l <"$work/objects")" -gt 200 ] || say "$HEDDLE_BUILD has few object files: nothing to read calls from"
grep -oHE '\bhd_[a-z0-9_]+\(' $(git ls-files 'runtime/*/inner.h' 2>/dev/null || find runtime -name inner.h) | tr -d '(' >"$work/inners"
xargs nm -A -g <"$work/objects" 2>/dev/null | awk -v table="$work/table" -v inners="$work/inners" '
    function may_call(file, name, list,   n, i, entry) {
        n = split(list, entry, " ")
        for (i = 1; i <= n; i++)
            if (sub(/^\+/, "", entry[i]) && index(file, entry[i] "/") == 1 && (entry[i], name) in inner) return 1
        return 0
    }
    function within(file, list,   n, i, entry, room) {
        n = split(list, entry, " "); room = file; sub(/\/[^\/]*$/, "", room)
        for (i = 1; i <= n; i++) {
            sub(/^\+/, "", entry[i])
            if (entry[i] == "=" room || entry[i] == file || index(room "/", entry[i] "/") == 1) return 1
        }
        return 0
    }
    BEGIN {
        while ((getline line < table) > 0) { split(line, part, "\t"); permitted[part[1]] = part[2] }
        while ((getline line < inners) > 0) { split(line, part, "/inner.h:"); inner[part[1], part[2]] = 1 }
    }
    {
        object = $1; sub(/:[^:]*$/, "", object)
        target = object; sub(/\.dir\/.*/, "", target); sub(/.*\//, "", target)
        file = object; sub(/.*\.dir\//, "", file); sub(/\.o$/, "", file)
        if (target !~ /^(heddle_cli|example_)/) target = "library"
        kind = $(NF - 1)
        if (kind ~ /^[Uw]$/) wants[file SUBSEP $NF SUBSEP target]; else has[target, $NF] = file
    }
    END {
        for (key in wants) {
            split(key, want, SUBSEP); from = want[1]; name = want[2]; to = ""
            if ((want[3], name) in has) to = has[want[3], name]
            else if (("library", name) in has) to = has["library", name]
            room = from; sub(/\/[^\/]*$/, "", room); other = to; sub(/\/[^\/]*$/, "", other)
            if (to == "" || room == other) continue
            bar = index(permitted[room] "|", "|")
            ok = within(to, substr(permitted[room], 1, bar - 1)) ||
                 (name ~ /^heddle_/ && within(to, substr(permitted[room], bar + 1))) ||
                 may_call(to, name, substr(permitted[room], bar + 1))
            print (ok ? "arrow" : "bad"), room, other, name, from, to
        }
    }' >"$work/calls"
while read -r _ _ _ name from to; do
    say "$from: may not call $name of $to"
done < <(grep '^bad' "$work/calls" | sort)
# What programs are made of calls what public headers declare, and nothing else of the library. (The judges are compiled
# with runtime/base/memory.c.)
while read -r name from; do
    say "$from: $name is in no public header"
done < <(awk '$2 ~ /^(planner\/(cli|report|draw)|runtime\/(files|verify)|examples)/ && $3 !~ /^(planner\/(cli|report|draw)|runtime\/(files|verify)|examples)/ { print $4, $5 }' "$work/calls" |
    sort -u | grep -vw hd_available_bytes | grep -vwFf <(grep -rhoE '\bheddle_[a-z0-9_]+' include | sort -u))
awk '{ print $2, $3 }' "$work/calls" >>"$work/arrows"
sort -u -o "$work/arrows" "$work/arrows"
# No room is above itself. (A transport may open the one that it wraps, as any program would; kernels/cpu has the table
# of what is in its folders, and what they share; runtime/block/device is the half of its room that has a device.)
loop=$(grep -vx 'runtime/comm/transport runtime/comm/face' "$work/arrows" | sed 's#kernels/[^ ]*#kernels#g;s#runtime/block/device#runtime/block#g' | tsort 2>&1 >/dev/null |
    awk '/loop/ { n++; next } n == 1 { printf "%s ", $NF }')
[ -z "$loop" ] || say "rooms that know one another: $loop"

# Sizes.
code=$(find include kernels runtime planner examples -name '*.[ch]' -o -name '*.cu')
tests=$(find tests -name '*.[ch]')
while read -r lines file; do
    [ "$file" = total ] || say "$file: $lines lines (limit 400)"
done < <(wc -l $code $tests | awk '$1 > 400')
# The formatter leaves comments as they are written (their tables), so nothing else keeps them to the line.
while read -r place; do
    say "$place: more than 120 columns"
done < <(awk 'length($0) > 120 { print FILENAME ":" FNR }' $code $tests $(find runtime tests examples -name '*.py'))
# As the formatter leaves them, the braces of a function, and of nothing else, stand alone at the beginning of a line.
functions() {
    awk 'FNR == 1 { first = 0 } /^\{$/ { first = FNR } /^\}$/ && first { print FNR - first - 1, FILENAME ":" first }' "$@" |
        sort -n
}
median() {
    awk '{ lines[NR] = $1 } END { print lines[int((NR + 1) / 2)] }'
}
while read -r lines place; do
    say "$place: a function of $lines lines (limit 60)"
done < <(functions $code $tests | awk '$1 > 60')

echo "arrows between rooms: $(wc -l <"$work/arrows"), rooms: $(sort -u "$work/table" | wc -l)"
echo "median function: $(functions $code | median) lines of code, $(functions $tests | median) of tests"
[ $failed = 0 ] && echo "lint: all dependencies point the right way"
exit $failed
