#!/usr/bin/env bash
# Read N (100000) forged package streams, drawn from SEED (0), and N / 10 of any bytes that hypothesis makes up, with
# kernels built under the address and the undefined-behavior sanitizer, at each SIMD level:
#   jobs/sanitize_packages.sh 20000 7
# HPCGNN_PYTHON (python3) needs numpy, pytest, hypothesis and cython. Any fault of memory ends it with a report.
set -euo pipefail

cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
python=${HPCGNN_PYTHON:-python3}

build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT
cp -r hpcgnn "$build/hpcgnn"
read -r include suffix < <("$python" -c \
    'import sysconfig as s; print(s.get_path("include"), s.get_config_var("EXT_SUFFIX"))')
for kernel in package combination_sparse; do
    rm -f "$build"/hpcgnn/_ext/$kernel.*
    "$python" -m cython -3 ext/$kernel.pyx -o "$build/$kernel.c"
    "${CC:-gcc}" -shared -fPIC -std=c11 -O1 -g -fopenmp -ffp-contract=off -Wno-psabi -fno-omit-frame-pointer \
        -fsanitize=address,undefined -fno-sanitize-recover=all -Iext/src -I"$include" \
        "$build/$kernel.c" ext/src/$kernel.c -o "$build/hpcgnn/_ext/$kernel$suffix"
done

# Python itself is not built under the sanitizer: its library comes first, and the interpreter's own leaks don't count.
libraries=$("${CC:-gcc}" -print-file-name=libasan.so):$("${CC:-gcc}" -print-file-name=libubsan.so)
for level in portable avx2 avx512; do
    printf '%s: ' "$level"
    HPCGNN_SIMD=$level LD_PRELOAD=$libraries ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 \
        PYTHONMALLOC=malloc PYTHONPATH=$build:tests \
        "$python" tests/quantized/test_package_faults.py "${1:-100000}" "${2:-0}"
done
