#!/usr/bin/env bash
# Can the tests fail? Plants the mutants of tests/mutants/*.txt one by one in a copy of the tree, builds, runs the tests
# that must notice, and expects a failing one. Not a build that fails, not a skip.
#
#     tests/mutants/run.sh                 all of them
#     tests/mutants/run.sh NAME|FILE...    these, by name or by the name of their file (sum-descending, reshard)
#     tests/mutants/run.sh --list [NAME..] no build: every text occurs exactly once in its file, every test is there
#
# An entry is a block of lines, a blank line between two:
#
#     # what is wrong in this mutant
#     name: sum-descending
#     file: runtime/move/sum.c
#     old: text of a line or of a part of it, once in the file
#     new: what stands there instead; may be empty
#     test: ctest regex of the tests of which one must fail
#
# Exit 1 when a mutant survives or does not apply. MUTANTS_PRESET (release) chooses the build; MUTANTS_FOLDER names a folder
# that keeps the copy and its build for the next call, which then builds what a mutant touches and no more. On a machine
# that does other work tests run out of time without any mutant; a longer HEDDLE_TEST_TIME_SCALE lets those live that are
# only slow.
set -uo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
list=0
[ "${1:-}" = --list ] && { list=1; shift; }
wanted=" $* "
names=() files=() olds=() news=() tests=() problems=0

problem() {
    printf '%-34s %s\n' "$1" "does not apply: $2"
    problems=$((problems + 1))
}

# --- the table ----------------------------------------------------------------------------------------------------------
add_entry() { # table; the entry's lines are in name, file, old, new, test
    [ "$name$file$old$new$test" = "" ] && return
    local key=$name
    if [ "$wanted" = "  " ] || [[ $wanted == *" $name "* || $wanted == *" $1 "* ]]; then
        if [ -z "$name" ] || [ -z "$file" ] || [ -z "$old" ] || [ -z "$test" ]; then
            problem "${key:-$1}" "the entry wants name, file, old and test"
        elif [[ " ${names[*]:-} " == *" $name "* ]]; then
            problem "$key" "the name is taken twice"
        else
            names+=("$name") files+=("$file") olds+=("$old") news+=("$new") tests+=("$test")
        fi
    fi
    name='' file='' old='' new='' test=''
}

read_table() {
    local name='' file='' old='' new='' test='' line table
    table=$(basename "$1" .txt)
    while IFS= read -r line || [ -n "$line" ]; do
        case $line in
        '') add_entry "$table" ;;
        '#'*) ;;
        'name: '*) name=${line#name: } ;;
        'file: '*) file=${line#file: } ;;
        'old: '*) old=${line#old: } ;;
        'new: '*) new=${line#new: } ;;
        'new:') new='' ;;
        'test: '*) test=${line#test: } ;;
        *) problem "$table" "'$line' is no line of an entry" ;;
        esac
    done <"$1"
    add_entry "$table"
}

occurrences() { # file, text
    TEXT=$2 awk 'BEGIN { text = ENVIRON["TEXT"] }
        { for (line = $0; (at = index(line, text)) > 0; line = substr(line, at + length(text))) n++ }
        END { print n + 0 }' "$1"
}

# Words of the regex that look like FOLDER/NAME are tests of this tree.
tests_exist() {
    local word
    for word in ${1//[|^\$()]/ }; do
        [[ $word =~ ^[a-z]+/[a-z0-9_]+$ ]] || continue
        [ -n "$(compgen -G "$root/tests/${word/#waits/contract}*")" ] || { echo "there is no test '$word'"; return 1; }
    done
}

applies() { # index
    local count complaint
    [ -f "$root/${files[$1]}" ] || { problem "${names[$1]}" "there is no file ${files[$1]}"; return 1; }
    count=$(occurrences "$root/${files[$1]}" "${olds[$1]}")
    [ "$count" = 1 ] || { problem "${names[$1]}" "its text occurs $count times in ${files[$1]}"; return 1; }
    [ "${olds[$1]}" != "${news[$1]}" ] || { problem "${names[$1]}" "it changes nothing"; return 1; }
    complaint=$(tests_exist "${tests[$1]}") || { problem "${names[$1]}" "$complaint"; return 1; }
}

for table in "$root"/tests/mutants/*.txt; do
    [ -e "$table" ] && read_table "$table"
done
if [ ${#names[@]} = 0 ] && [ $problems = 0 ]; then
    echo "no mutant is called$wanted" >&2
    exit 1
fi
if [ $list = 1 ]; then
    for i in "${!names[@]}"; do
        applies "$i" && printf '%-34s %s\n' "${names[$i]}" "${files[$i]}"
    done
    [ $problems = 0 ]
    exit
fi

# --- the copy -----------------------------------------------------------------------------------------------------------
if [ -n "${MUTANTS_FOLDER:-}" ]; then
    mkdir -p "$MUTANTS_FOLDER" && copy=$(cd "$MUTANTS_FOLDER" && pwd) || exit 1
    [ -f "$copy/CMakePresets.json" ] || [ -z "$(ls -A "$copy")" ] || { echo "$copy is no copy of the tree" >&2; exit 1; }
else
    copy=$(mktemp -d) || exit 1
    trap 'rm -rf "$copy"' EXIT
fi
trap 'exit 130' INT TERM
preset=${MUTANTS_PRESET:-release}
same_tree() { # what is alike keeps its time, so that nothing is built for it
    local new file
    new=$(mktemp -d -p "$copy" build-new.XXXXXX) || return 1
    tar -C "$root" --exclude=./.git --exclude='./build*' -c . | tar -C "$new" -x || return 1
    while IFS= read -r -d '' file; do
        [ -e "$new/$file" ] || rm -f "$copy/$file"
    done < <(cd "$copy" && find . -path './build*' -prune -o -type f -print0)
    while IFS= read -r -d '' file; do
        cmp -s "$new/$file" "$copy/$file" && continue
        mkdir -p "$copy/${file%/*}" && cp "$new/$file" "$copy/$file" || return 1
    done < <(cd "$new" && find . -type f -print0)
    rm -rf "$new"
}
same_tree || exit 1
cd "$copy" || exit 1
launcher=
if command -v ccache >/dev/null; then # copies of one tree in different places are the same to it
    launcher=-DCMAKE_C_COMPILER_LAUNCHER=ccache
    export CCACHE_BASEDIR=$copy CCACHE_NOHASHDIR=1 CCACHE_IGNOREOPTIONS=-Werror
fi
build=build-$preset
cmake --preset "$preset" -B "$copy/$build" -G Ninja -DHEDDLE_TESTS=ON -DHEDDLE_WERROR=OFF $launcher >"$build.log" 2>&1 || {
    tail -20 "$build.log"
    exit 1
}
known_targets=$(ninja -C "$build" -t targets all | sed -n 's|^\([A-Za-z0-9_]*\): .*|\1|p')

# Of the tests a regex matches: programs are targets of the same name, scripts want the command line and what they preload,
# those of Python the package.
targets_of() { # regex
    ctest --test-dir "$build" -N -R "$1" | sed -n 's/^ *Test *#[0-9]*: //p' | while IFS= read -r test; do
        case $test in
        golden/* | long/* | hosts/*)
            grep -xE 'heddle_cli|tcp_ranks|nccl_ranks|heddle_mpi|heddle_pmpi_count|heddle_damage|training_dump|bench_longest|example_.*' \
                <<<"$known_targets"
            ;;
        python/*) echo tier_numpy ;;
        *) test=${test#*/} && echo "${test%@*}" ;; # one program on several instruction sets
        esac
    done | sort -u
}

# 0 green, 1 red, or not done after so many seconds, 2 does not build, 3 nothing but skips, 4 no such test
build_and_test() { # regex, seconds
    local targets
    mapfile -t targets < <(targets_of "$1")
    [ ${#targets[@]} -gt 0 ] || return 4
    ninja -C "$build" "${targets[@]}" >"$build.log" 2>&1 || return 2
    SECONDS=0
    timeout -k 10 "$2" ctest --test-dir "$build" --stop-on-failure -j 1 -R "$1" </dev/null >"$build.log" 2>&1 || return 1
    grep -q ' Passed ' "$build.log" || return 3
}

plant() { # index
    OLD=${olds[$1]} NEW=${news[$1]} awk 'BEGIN { old = ENVIRON["OLD"] }
        (at = index($0, old)) > 0 { $0 = substr($0, 1, at - 1) ENVIRON["NEW"] substr($0, at + length(old)) }
        { print }' "$root/${files[$1]}" >"${files[$1]}"
}

# --- the mutants --------------------------------------------------------------------------------------------------------
export HEDDLE_TEST_STOP=1 # one case that fails is enough, and of those that hang each has its time
declare -A sound limit # regex -> what its tests say about the tree as it is, and how long a mutant may take
survived=0 untried=0 killed=0
for i in "${!names[@]}"; do
    name=${names[$i]} regex=${tests[$i]}
    applies "$i" || continue
    if [ -z "${sound[$regex]:-}" ]; then
        build_and_test "$regex" 3600
        sound[$regex]=$? limit[$regex]=$((60 + 4 * SECONDS))
    fi
    case ${sound[$regex]} in
    1) problem "$name" "without it $(sed -n 's/^.*Test *#[0-9]*: \([^ ]*\).*\*\*\*.*/\1/p' "$build.log" | head -1) fails too"; continue ;;
    2) problem "$name" "without it the tree does not build"; continue ;;
    3) printf '%-34s %s\n' "$name" "not tried: all of '$regex' is skipped here"; untried=$((untried + 1)); continue ;;
    4) problem "$name" "no test matches '$regex'"; continue ;;
    esac
    plant "$i"
    build_and_test "$regex" "${limit[$regex]}"
    case $? in
    1)
        killers=$(sed -n 's/^.*Test *#[0-9]*: \([^ ]*\).*\*\*\*\([A-Za-z]*\).*/\1 \2/p' "$build.log" | grep -v ' Skipped' |
            sed 's/ Failed$//' | paste -sd, -)
        printf '%-34s %s\n' "$name" "killed by ${killers:-its time, ${limit[$regex]} s}"
        killed=$((killed + 1))
        ;;
    2) problem "$name" "it does not build: $(grep -m1 ' error: ' "$build.log")" ;;
    *)
        printf '%-34s %s\n' "$name" "SURVIVED $regex"
        survived=$((survived + 1))
        ;;
    esac
    cp "$root/${files[$i]}" "${files[$i]}" && touch "${files[$i]}"
done
echo "$killed killed, $survived survived, $problems do not apply, $untried not tried"
[ $survived = 0 ] && [ $problems = 0 ]
