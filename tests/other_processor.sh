#!/bin/sh
# Runs a command with the attention kernel compiled for another processor than this one:
#
#     tests/other_processor.sh x86-64-v3 python -m dcinterp.model.kernels.fuzz --cases 2000 --seed 1
#     tests/other_processor.sh aarch64 python -m pytest -n0 tests/unit/model/test_kernels.py
#
# x86-64-v2 (SSE4) and x86-64-v3 (AVX2) run as they are. aarch64 (NEON) needs a cross compiler and an emulator (Debian:
# g++-aarch64-linux-gnu, qemu-user), and the right to read the memory of one's own processes; every call then takes
# some tenths of a second. Linux.
set -eu

processor=$1
shift
here=$(cd "$(dirname "$0")" && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT INT TERM
REAL_COMPILER=$(command -v g++)
export REAL_COMPILER PROCESSOR="$processor" FOLDER="$folder" HERE="$here/processors"

# A compiler of its own, and with it a cache of its own.
if [ "$processor" = aarch64 ]; then
    command -v aarch64-linux-gnu-g++ >/dev/null && command -v qemu-aarch64 >/dev/null || {
        echo "aarch64 needs the commands aarch64-linux-gnu-g++ and qemu-aarch64" >&2
        exit 1
    }
    cat >"$folder/g++" <<'END'
#!/bin/sh
set -e
case $* in
    --version) exec "$REAL_COMPILER" --version ;;
esac
for word; do
    shift
    case $word in
        -march=native) set -- "$@" -march=armv8-a ;;
        -fopenmp) ;; # one thread: two would bring the same page
        *) set -- "$@" "$word" ;;
    esac
    [ "${before:-}" = -o ] && out=$word
    before=$word
done
case $1 in
    -shared) ;;
    *) exec aarch64-linux-gnu-g++ "$@" ;;
esac
# The emulated kernel, asked what it is; and in its place a library for this processor that has every call emulated.
shift
set -- "$@" -static -I"$HERE"
for word; do
    shift
    [ "$word" = -o ] || [ "$word" = "$out" ] || set -- "$@" "$word"
done
aarch64-linux-gnu-g++ -std=c++17 -O1 "$@" -o "$FOLDER/driver" "$HERE/driver.cpp"
cat >"$FOLDER/ask.cpp" <<'ASK'
#include <cstdio>
extern "C" long fused_lanes(), fused_argument_bytes();
int main() { printf("-DLANES=%ld -DARGUMENT_BYTES=%ld", fused_lanes(), fused_argument_bytes()); }
ASK
aarch64-linux-gnu-g++ "$@" -o "$FOLDER/ask" "$FOLDER/ask.cpp"
# shellcheck disable=SC2046
exec "$REAL_COMPILER" -shared -fPIC -O1 -DEMULATOR='"qemu-aarch64"' "-DDRIVER=\"$FOLDER/driver\"" \
    $(qemu-aarch64 "$FOLDER/ask") "$HERE/stub.cpp" -o "$out"
END
else
    cat >"$folder/g++" <<'END'
#!/bin/sh
for word; do
    shift
    [ "$word" = -march=native ] && word=-march=$PROCESSOR
    set -- "$@" "$word"
done
exec "$REAL_COMPILER" "$@"
END
fi
chmod +x "$folder/g++"
export CXX="$folder/g++" DCINTERP_CACHE="$folder/cache" OMP_NUM_THREADS=1
"${PYTHON:-python}" -m dcinterp.model.kernels.fused
"$@"
