#!/usr/bin/env bash
# The dependency directions of the design, read off the #include lines. A folder may include itself, the public headers
# and what is listed here, nothing else. A listed folder means those in it, too; =FOLDER only itself.
set -u
cd "${HEDDLE_SOURCE:?}"
failed=0
say() {
    echo "$1"
    failed=1
}

allowed() {
    case $1 in
    include/heddle | include/heddle/*) echo "" ;;
    kernels/cpu) echo "kernels runtime/base" ;;      # the table: a misspelt HEDDLE_CPU is refused
    kernels/cpu/gemm) echo "kernels runtime/base" ;; # BLAS: descriptions and packed weights are allocated
    kernels | kernels/*) echo "kernels" ;;
    runtime/base) echo "runtime/base" ;;
    runtime/layout) echo "runtime/base runtime/layout" ;;
    runtime/comm/ground) echo "runtime/base runtime/layout runtime/comm/ground" ;;
    runtime/comm) echo "runtime/base runtime/layout runtime/comm/ground =runtime/comm" ;;
    runtime/comm/transport) echo "runtime/base runtime/layout runtime/comm/ground =runtime/comm runtime/comm/transport" ;;
    runtime/comm/transport/mpi) echo "" ;;
    runtime/comm/face) echo "runtime/base runtime/layout runtime/comm" ;;
    runtime/device) echo "runtime/base runtime/device" ;;
    runtime/move) echo "runtime/base =runtime/comm runtime/move kernels" ;;
    runtime/reshard) echo "runtime/base runtime/layout runtime/device =runtime/comm runtime/move runtime/reshard kernels" ;;
    runtime/attention) echo "runtime/base runtime/layout runtime/device =runtime/comm runtime/move runtime/reshard runtime/attention kernels" ;;
    runtime/block) echo "runtime/base runtime/layout runtime/block kernels" ;;
    runtime/session) echo "runtime/base runtime/layout runtime/device =runtime/comm runtime/move runtime/reshard runtime/session" ;;
    runtime/parallel) echo "runtime/base runtime/layout runtime/device =runtime/comm runtime/reshard runtime/block runtime/parallel kernels" ;;
    runtime/document) echo "runtime/base runtime/document" ;;
    runtime/method) echo "runtime/base runtime/layout runtime/method" ;;
    runtime/schedule) echo "runtime/base runtime/layout runtime/document runtime/method runtime/schedule" ;;
    runtime/files) echo "runtime/files" ;;
    runtime/verify) echo "runtime/files runtime/verify" ;; # judges share nothing with what they judge
    planner/cli) echo "runtime/files runtime/verify" ;;
    examples | examples/*) echo "" ;;
    planner/*) echo "runtime/base runtime/layout runtime/document runtime/method runtime/schedule planner" ;;
    *) echo "unknown" ;;
    esac
}

for file in $(git ls-files 'include/*.h' 'kernels/*.[ch]' 'runtime/*.[ch]' 'planner/*.[ch]' 'examples/*.[ch]' 2>/dev/null ||
    find include kernels runtime planner examples -name '*.[ch]'); do
    folder=$(dirname "$file")
    permitted=$(allowed "$folder")
    [ "$permitted" != unknown ] || say "$file: folder '$folder' is not in the table of this test"
    while read -r included; do
        case $included in
        */*) ;;
        *) [ -f "$folder/$included" ] || say "$file: \"$included\" is not in its folder"; continue ;;
        esac
        ok=0
        for prefix in $permitted; do
            case $prefix in
            =*) [ "${included%/*}" != "${prefix#=}" ] || ok=1 ;;
            *) case $included in "$prefix"/*) ok=1 ;; esac ;;
            esac
        done
        [ $ok = 1 ] || say "$file: may not include \"$included\""
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
outside '#[[:space:]]*include[[:space:]]*<(cuda|nccl)' 'CUDA header outside its room' '^(kernels/cuda/|include/heddle/nccl)'
outside '#[[:space:]]*include[[:space:]]*<dnnl' 'oneDNN outside its folder' '^kernels/cpu/gemm/'
outside '\bgetenv[[:space:]]*\(' 'environment read outside base' '^(runtime/base/|planner/cli/)'
outside '(^|[^>.a-z_])(printf|fprintf|puts|perror|abort|exit)[[:space:]]*\(' 'the library prints or exits' '^(planner/cli/|runtime/files/|runtime/schedule/write\.c|[^:]*:[0-9]*:[[:space:]]*(/?\*|//))' 'kernels runtime planner/model planner/search'
outside '\b(TOD[O]|FIXM[E]|XX[X]|HAC[K])\b' 'unfinished mark' '^$'

# Size limits.
while read -r lines file; do
    [ "$file" = total ] && continue
    [ "$lines" -le 450 ] || say "$file: $lines lines (limit 450)"
done < <(find include kernels runtime planner \( -name '*.[ch]' -o -name '*.cu' \) -exec wc -l {} +)

[ $failed = 0 ] && echo "lint: all dependencies point the right way"
exit $failed
