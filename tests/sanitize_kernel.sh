#!/bin/sh
# Runs the fuzz of the attention kernel with its C++ compiled under AddressSanitizer: reading or writing outside of an
# array ends it with a report. Linux and g++. Arguments go to the fuzz:
#
#     tests/sanitize_kernel.sh --cases 2000 --seed 1
#
# PYTHON names the interpreter (default: python).
set -eu

python=${PYTHON:-python}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT INT TERM

# A compiler of its own, and with it a cache of its own. Fewer optimisations: the instrumented loops build in a minute.
cat >"$folder/g++" <<'END'
#!/bin/sh
unset LD_PRELOAD
case $* in
    --version) exec "$REAL_COMPILER" --version ;;
esac
exec "$REAL_COMPILER" "$@" -O1 -g -fsanitize=address -fno-omit-frame-pointer
END
chmod +x "$folder/g++"
REAL_COMPILER=$(command -v g++)
# The C++ library too: the sanitizer must find it before torch brings it, or it stops at the first exception.
runtime="$("$REAL_COMPILER" -print-file-name=libasan.so) $("$REAL_COMPILER" -print-file-name=libstdc++.so)"
export REAL_COMPILER CXX="$folder/g++" DCINTERP_CACHE="$folder/cache"

# Python and torch leave memory to the system when they end.
export LD_PRELOAD="$runtime" ASAN_OPTIONS=detect_leaks=0
"$python" -m dcinterp.model.kernels.fused
LD_PRELOAD='' grep -q __asan "$folder"/cache/*.so || { echo "it was not compiled under AddressSanitizer" >&2; exit 1; }
"$python" -m dcinterp.model.kernels.fuzz "$@"
