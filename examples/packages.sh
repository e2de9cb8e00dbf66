# Sourced by examples/quickstart.sh and tests/run.sh: makes sure that the tools and libraries are there.
#
#     heddle_packages build          what the library needs
#     heddle_packages build test     and what its tests need; also: hosts (two network namespaces), clang (and libFuzzer),
#                                    python (a virtual environment), ccache
#
# As root on a Debian-like system missing packages are installed; otherwise they are named, and the script stops unless it
# can do without: only tests want Ninja and MPI.

heddle_has_header() { echo "#include <$1>" | cc -E - >/dev/null 2>&1; }

# What the library is built without where it is missing.
heddle_optional() {
    command -v ninja >/dev/null || echo ninja-build
    command -v mpirun >/dev/null || echo openmpi-bin
    command -v mpicc >/dev/null || echo libopenmpi-dev
}

# Prints the Debian package for every probe that fails.
heddle_missing() {
    command -v cc >/dev/null || echo gcc
    echo '#include <stdio.h>' | cc -E - >/dev/null 2>&1 || echo libc6-dev
    command -v cmake >/dev/null || echo cmake
    command -v pkg-config >/dev/null || echo pkg-config
    pkg-config --exists hwloc 2>/dev/null || echo libhwloc-dev
    pkg-config --exists yaml-0.1 2>/dev/null || echo libyaml-dev
    heddle_has_header dnnl.h || echo libdnnl-dev
    case " $* " in *" test "*)
        heddle_optional
        heddle_has_header cmocka.h || echo libcmocka-dev
        command -v c++ >/dev/null || echo g++
        command -v pgrep >/dev/null || echo procps
        command -v python3 >/dev/null || echo python3
        [ -d /usr/lib/python3/dist-packages/numpy ] || echo python3-numpy
        [ -d /usr/lib/python3/dist-packages/pytest ] || echo python3-pytest
        [ "$(uname -m)" != x86_64 ] || command -v qemu-x86_64 >/dev/null || echo qemu-user
        ;;
    esac
    case " $* " in *" python "*)
        python3 -c 'import ensurepip' 2>/dev/null || echo python3-venv
        ;;
    esac
    case " $* " in *" ccache "*)
        command -v ccache >/dev/null || echo ccache
        ;;
    esac
    case " $* " in *" hosts "*)
        command -v ip >/dev/null || [ -x /usr/sbin/ip ] || echo iproute2
        ;;
    esac
    case " $* " in *" clang "*)
        command -v clang >/dev/null || echo clang
        ls "$(clang -print-resource-dir 2>/dev/null)"/lib/*/libclang_rt.fuzzer-*.a >/dev/null 2>&1 || echo libclang-rt-dev
        ;;
    esac
}

heddle_packages() {
    local missing optional
    missing=$(heddle_missing "$@" | sort -u | tr '\n' ' ')
    optional=$(heddle_optional | sort -u | tr '\n' ' ')
    [ -n "$missing$optional" ] || return 0
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        missing="$missing$optional"
        echo "installing Debian packages: $missing"
        local log
        log=$(mktemp)
        if ! { apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $missing; } >"$log" 2>&1; then
            tail -n 20 "$log" >&2
            rm -f "$log"
            echo "error: the packages above could not be installed" >&2
            return 2
        fi
        rm -f "$log"
        missing=$({ heddle_missing "$@"; heddle_optional; } | sort -u | tr '\n' ' ')
        [ -z "$missing" ] || { echo "error: still missing after the installation: $missing" >&2; return 2; }
        return 0
    fi
    if [ -z "$missing" ]; then
        echo "not there, and done without (Debian names): $optional"
        return 0
    fi
    echo "error: these packages are missing: $missing" >&2
    echo "       install them (Debian names), for example: sudo apt-get install $missing" >&2
    return 2
}
