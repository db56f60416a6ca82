#!/usr/bin/env bash
# Run a command with all kernels under the address and the undefined-behavior sanitizer; the first fault ends it:
#   jobs/sanitize.sh python -m pytest -q tests/ops
#   jobs/sanitize.sh                                  only builds
# It runs in build/sanitized, a copy of the checkout, whose kernels are built again where ext/ has changed.
# HPCGNN_SANITIZED=1 takes the copy as it is. HPCGNN_SIMD=portable|avx2|avx512 forces a variant of the kernels, as everywhere;
# it has those that this processor can run.
set -euo pipefail

here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)
HPCGNN_EXTRAS=${HPCGNN_EXTRAS:-report},test
# shellcheck source=jobs/env.sh
source "$here/env.sh"
copy=$HPCGNN_ROOT/build/sanitized
read -ra compiler <<<"${CC:-gcc}"
case $(hpcgnn_best_level) in
    avx512) levels=all ;;
    avx2) levels=portable,avx2 ;;
    *) levels=portable ;;
esac

# Times are kept, so that only kernels are built again whose sources have changed; what was removed goes from the copy.
copy_sources() {
    mkdir -p "$copy/kernels"
    if ! cmp -s "$HPCGNN_ROOT/setup.py" "$copy/setup.py" || [[ $(cat "$copy/levels" 2>/dev/null) != "$levels" ]]; then
        rm -rf "$copy/build"
        find "$copy" -name '*.so' -delete
    fi
    printf '%s\n' "$levels" >"$copy/levels"
    find "$copy" -path "$copy/hpcgnn/_ext/*.so" -exec mv -t "$copy/kernels" {} +
    rm -rf "$copy"/{ext,hpcgnn,jobs,tests,examples,docs,data}
    tar -C "$HPCGNN_ROOT" --exclude='*.so' --exclude='__pycache__' --exclude='data/benchmarks' --exclude='data/shards' \
        -cf - ext hpcgnn jobs tests examples docs data mkdocs.yml setup.py pyproject.toml README.md LICENSE CHANGELOG.md \
        ARCHITECTURE.md |
        tar -C "$copy" -xpf -
    find "$copy/kernels" -name '*.so' -exec mv -t "$copy/hpcgnn/_ext" {} +
}

build_kernels() {
    local started=$SECONDS
    copy_sources
    (cd "$copy" && HPCGNN_SANITIZE=1 HPCGNN_LEVELS=$levels CFLAGS='' python setup.py -q build_ext --inplace >"$copy/build.log" 2>&1) || {
        tail -n 30 "$copy/build.log" >&2
        hpcgnn_fail "the kernels can't be built with sanitizers; the whole log is in $copy/build.log"
        return 1
    }
    ((SECONDS - started < 5)) || printf 'hpcgnn: built sanitized kernels in %d s\n' "$((SECONDS - started))" >&2
}

if [[ -z ${HPCGNN_SANITIZED:-} ]]; then
    mkdir -p "$copy"
    "${compiler[@]}" -print-file-name=libasan.so | grep -q / ||
        hpcgnn_fail "${compiler[*]} has no libasan.so; install gcc's sanitizer libraries (Red Hat: dnf install libasan libubsan)"
    (
        flock 9
        build_kernels
    ) 9>"$copy/lock"
fi
(($#)) || exit 0

cd "$copy"
# Python itself is not built under the sanitizer: its library comes first, and the interpreter's own leaks don't count.
export ASAN_OPTIONS=detect_leaks=0:halt_on_error=1${ASAN_OPTIONS:+:$ASAN_OPTIONS}
export UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1${UBSAN_OPTIONS:+:$UBSAN_OPTIONS}
export PYTHONMALLOC=malloc PYTHONPATH=$copy:$copy/tests
exec env LD_PRELOAD="$("${compiler[@]}" -print-file-name=libasan.so):$("${compiler[@]}" -print-file-name=libubsan.so)" "$@"
