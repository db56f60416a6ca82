# Installs hpcgnn into the environment; sourced by jobs/env.sh, which lists the variables and whose names it uses.
# Kernels compile in the background while packages are downloaded and unpacked.
# shellcheck shell=bash

HPCGNN_BUILD_TOOLS=('setuptools>=77' 'cython>=3.2.1')
HPCGNN_TORCH_VERSION=2.13.0
HPCGNN_TORCH_CPU_INDEX=https://download.pytorch.org/whl/cpu
HPCGNN_UV=

# hpcgnn_timed STEP COMMAND...: notes the seconds of a command in the file that HPCGNN_STEPS names, if any.
hpcgnn_timed() {
    local step=$1 started tenths
    shift
    started=$(date +%s%N)
    "$@" || return
    tenths=$((($(date +%s%N) - started) / 100000000))
    [[ -z ${HPCGNN_STEPS:-} ]] || printf '%s\t%d.%d\n' "$step" $((tenths / 10)) $((tenths % 10)) >>"$HPCGNN_STEPS"
}

# hpcgnn_check_extras EXTRAS...
hpcgnn_check_extras() {
    local known extra
    known=$(sed -n '/^\[project.optional-dependencies\]/,/^$/s/^\([a-z0-9]*\) = .*/\1/p' "$HPCGNN_ROOT/pyproject.toml")
    for extra in "$@"; do
        [[ $'\n'$known$'\n' == *$'\n'$extra$'\n'* ]] ||
            { hpcgnn_fail "HPCGNN_EXTRAS has '$extra'; expected some of ${known//$'\n'/, }"; return 1; }
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

# CC may begin with a launcher, as in CC="ccache gcc".
hpcgnn_check_compiler() {
    local python=$1 words word headers missing=
    if [[ -n ${CC:-} ]]; then
        read -ra words <<<"$CC"
        for word in "${words[@]}"; do
            [[ $word != -* ]] || break
            command -v "$word" >/dev/null || missing=$word
        done
    else
        command -v cc >/dev/null || command -v gcc >/dev/null || missing=cc
    fi
    [[ -z $missing ]] ||
        { hpcgnn_fail "there is no C compiler ($missing); install one (Debian: apt-get install build-essential," \
            "Red Hat: dnf install gcc), or load a compiler module"; return 1; }
    headers=$("$python" -c 'import sysconfig; print(sysconfig.get_paths()["include"])') || return 1
    [[ -f $headers/Python.h ]] ||
        { hpcgnn_fail "$headers/Python.h is missing; install the headers of this Python" \
            "(Debian: apt-get install python3-dev, Red Hat: dnf install python3-devel)"; return 1; }
}

# uv brings pip within a second; Python's own way takes several.
hpcgnn_add_pip() {
    local python=$HPCGNN_VENV/bin/python
    [[ -z $HPCGNN_UV ]] || ! "$HPCGNN_UV" pip install --quiet --python "$python" pip 2>/dev/null || return 0
    "$python" -m ensurepip --upgrade --default-pip >/dev/null
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
    { "$python" -m venv --clear --without-pip "$HPCGNN_VENV" && hpcgnn_add_pip; } ||
        { hpcgnn_fail "$python -m venv failed; install the venv module (Debian: apt-get install python3-venv)"
            return 1; }
}

# hpcgnn_log COMMAND...: quiet; what it said is shown when it fails.
hpcgnn_log() {
    local log=$HPCGNN_VENV/install.log start
    start=$(wc -l <"$log" 2>/dev/null) || start=0
    "$@" >>"$log" 2>&1 && return 0
    tail -n "+$((start + 1))" "$log" | tail -n 30 >&2
    return 1
}

# hpcgnn_pip ARGUMENTS
hpcgnn_pip() {
    hpcgnn_log "$HPCGNN_VENV/bin/python" -m pip --disable-pip-version-check install "$@" ||
        hpcgnn_fail "pip install $* failed; the whole log is in $HPCGNN_VENV/install.log"
}

# Sets HPCGNN_UV to the uv that is there, or to nothing.
hpcgnn_find_uv() {
    HPCGNN_UV=
    case ${HPCGNN_INSTALLER:-auto} in
        pip) return 0 ;;
        auto | uv) ;;
        *) hpcgnn_fail "HPCGNN_INSTALLER is '$HPCGNN_INSTALLER'; expected auto, pip or uv"; return 1 ;;
    esac
    HPCGNN_UV=$(type -P uv) || [[ ! -x $HPCGNN_VENV/bin/uv ]] || HPCGNN_UV=$HPCGNN_VENV/bin/uv
    hpcgnn_export_indexes
}

# Where pip's configuration sends it, uv goes too: it reads its own alone, and would ask the public index.
hpcgnn_export_indexes() {
    local python settings name variable section value
    for python in "$HPCGNN_VENV/bin/python" "${HPCGNN_PYTHON:-python3}"; do
        ! settings=$("$python" -m pip config list 2>/dev/null) || break
    done
    for name in index-url extra-index-url find-links cert; do
        case $name in
            index-url) variable=UV_DEFAULT_INDEX ;;
            extra-index-url) variable=UV_INDEX ;;
            find-links) variable=UV_FIND_LINKS ;;
            cert) variable=SSL_CERT_FILE ;;
        esac
        for section in :env: install global; do
            value=$(sed -n "s/^$section\.$name='\(.*\)'\$/\1/p" <<<"$settings")
            [[ -z $value ]] || break
        done
        value=${value//\\n/ }
        [[ $name != find-links ]] || value=${value// /,}
        [[ -z $value || -n ${!variable:-} ]] || export "$variable=$value"
    done
    # Of several indexes, uv would take the first that knows a package at all, pip the one with the best version.
    export UV_INDEX_STRATEGY=${UV_INDEX_STRATEGY:-unsafe-best-match}
}

# Where there is no uv, pip installs it into the environment, or says that it can't.
hpcgnn_add_uv() {
    [[ ${HPCGNN_INSTALLER:-auto} != pip && ! -x $HPCGNN_UV ]] || return 0
    if "$HPCGNN_VENV/bin/python" -m pip --disable-pip-version-check install --retries 0 --only-binary :all: uv \
        >>"$HPCGNN_VENV/install.log" 2>&1; then
        HPCGNN_UV=$HPCGNN_VENV/bin/uv
    elif [[ ${HPCGNN_INSTALLER:-auto} == uv ]]; then
        hpcgnn_fail "HPCGNN_INSTALLER=uv, but there is no uv and pip can't install it; put it on PATH or unset it"
    else
        HPCGNN_UV=
        printf "hpcgnn: there is no uv and pip can't install it, so pip installs all, which takes longer\n" >&2
    fi
}

hpcgnn_get_build_tools() {
    hpcgnn_add_uv && hpcgnn_get "${HPCGNN_BUILD_TOOLS[@]}"
}

# hpcgnn_get ARGUMENTS: by uv, or by pip where uv is not or fails. Python makes byte code of what it imports.
hpcgnn_get() {
    if [[ -n $HPCGNN_UV ]]; then
        hpcgnn_log "$HPCGNN_UV" pip install --python "$HPCGNN_VENV/bin/python" "$@" && return 0
        [[ ${HPCGNN_INSTALLER:-auto} == auto ]] ||
            { hpcgnn_fail "uv pip install $* failed; the whole log is in $HPCGNN_VENV/install.log"; return 1; }
        printf 'hpcgnn: uv pip install %s failed (see above), so pip goes on\n' "$*" >&2
        HPCGNN_UV=
    fi
    hpcgnn_pip --no-compile "$@"
}

hpcgnn_sees_gpu() {
    compgen -G '/dev/nvidia[0-9]*' >/dev/null || [[ -e /proc/driver/nvidia/version ]] ||
        timeout 10 nvidia-smi --list-gpus >/dev/null 2>&1
}

# hpcgnn_has_cpu_torch OPTIONS: whether pip finds the wheel for CPUs. One short try: many clusters let nobody out.
hpcgnn_has_cpu_torch() {
    local versions
    versions=$(timeout 15 "$HPCGNN_VENV/bin/python" -m pip --disable-pip-version-check index versions torch \
        --timeout 3 --retries 0 "$@" 2>/dev/null)
    [[ $versions == *"$HPCGNN_TORCH_VERSION+cpu"* ]]
}

# Sets TORCH to what is installed as torch and says why. torch==VERSION alone brings gigabytes of CUDA.
hpcgnn_choose_torch() {
    local reason cpu=torch==$HPCGNN_TORCH_VERSION+cpu
    TORCH=("torch==$HPCGNN_TORCH_VERSION")
    if [[ -n ${HPCGNN_TORCH:-} ]]; then
        read -ra TORCH <<<"$HPCGNN_TORCH"
        reason="as HPCGNN_TORCH says"
    elif hpcgnn_sees_gpu; then
        reason="since an NVIDIA GPU is seen"
    elif [[ ! $(uname -sm) =~ ^Linux\ (x86_64|aarch64)$ ]]; then
        reason="since there is no other for $(uname -sm)"
    elif hpcgnn_has_cpu_torch --no-index; then
        TORCH=("$cpu")
        reason="from the folders that pip is told of, since no NVIDIA GPU is seen here"
    elif hpcgnn_has_cpu_torch --extra-index-url "$HPCGNN_TORCH_CPU_INDEX"; then
        TORCH=("$cpu" --extra-index-url "$HPCGNN_TORCH_CPU_INDEX")
        reason="since no NVIDIA GPU is seen here"
    else
        reason="which may bring gigabytes of CUDA: no NVIDIA GPU is seen here,"
        reason+=" but $HPCGNN_TORCH_CPU_INDEX has no answer"
    fi
    printf 'hpcgnn: takes %s, %s; for another, as for nodes with other devices, set HPCGNN_TORCH and remove %s\n' \
        "${TORCH[0]}" "$reason" "$HPCGNN_VENV" >&2
}

# HPCGNN_TORCH may hold options of pip that uv has not.
hpcgnn_get_torch() {
    hpcgnn_choose_torch
    if [[ -n ${HPCGNN_TORCH:-} ]]; then hpcgnn_pip --no-compile "${TORCH[@]}"; else hpcgnn_get "${TORCH[@]}"; fi
}

# Builds in place, and only what has changed; with other flags, which neither Cython nor setuptools notices, all.
hpcgnn_build_kernels() {
    local python=$HPCGNN_VENV/bin/python record=build/kernels.flags flags
    cd "$HPCGNN_ROOT" || return 1
    flags=$(printf '%s\n' "${CC:-}" "${CFLAGS:-}" "${LDFLAGS:-}" "${HPCGNN_BOUNDS_CHECK:-}" "${HPCGNN_SANITIZE:-}" \
        "${HPCGNN_LEVELS:-}"
        "$python" -c 'import sys, Cython; print(sys.version, Cython.__version__)' && cat setup.py) || return 1
    [[ -f $record && $(<"$record") == "$flags" ]] || rm -rf "$record" build/cython build/lib.* build/temp.*
    "$python" setup.py -q build_ext --inplace && printf '%s\n' "$flags" >"$record"
}

# hpcgnn_get_packages EXTRAS...: hpcgnn itself, whose kernels are built apart, with what it needs. Whatever the
# resolver wants, the torch that is there stays: it was chosen for this machine's devices.
hpcgnn_get_packages() {
    local constraints=$HPCGNN_VENV/constraints.txt extras
    extras=$(IFS=,; printf '%s' "$*")
    "$HPCGNN_VENV/bin/python" -c 'from importlib.metadata import version; print("torch==" + version("torch"))' \
        >"$constraints" || return 1
    HPCGNN_KERNELS_IN_PLACE=1 hpcgnn_get --constraint "$constraints" --no-build-isolation \
        --editable "${HPCGNN_ROOT}[$extras]"
}

# hpcgnn_write_byte_code EXTRAS...: Python writes byte code of what it imports first. Where the user has forbidden that,
# each rank would compile all in memory, so what is used is imported here once. A gradient of a given gradient, which
# tests take, imports symbolic_shapes, and with it all of sympy.
hpcgnn_write_byte_code() {
    [[ -n ${PYTHONDONTWRITEBYTECODE:-} ]] || return 0
    local modules="click, h5py, kaminpar, mpi4py, pymetis, rich.progress, scipy.optimize, torch"
    [[ " $* " != *" report "* ]] || modules+=", jinja2, matplotlib.pyplot"
    [[ " $* " != *" test "* ]] ||
        modules+=", hypothesis, pytest, sklearn.metrics, torch.fx.experimental.symbolic_shapes, torch_geometric.nn"
    hpcgnn_log env -u PYTHONDONTWRITEBYTECODE "$HPCGNN_VENV/bin/python" -c "import $modules" ||
        hpcgnn_fail "what was installed can't be imported; the whole log is in $HPCGNN_VENV/install.log"
}

# hpcgnn_wait_for_kernels PROCESS
hpcgnn_wait_for_kernels() {
    wait "$1" && return 0
    tail -n 30 "$HPCGNN_VENV/kernels.log" >&2
    hpcgnn_fail "the kernels can't be built; the whole log is in $HPCGNN_VENV/kernels.log"
}

# hpcgnn_install EXTRAS...: in a shell of its own, since what it starts in the background ends with that.
hpcgnn_install() {
    local python=$HPCGNN_VENV/bin/python kernels HPCGNN_LEVELS
    HPCGNN_LEVELS=$(hpcgnn_levels)
    export HPCGNN_LEVELS
    hpcgnn_check_extras "$@" && hpcgnn_find_uv && hpcgnn_timed "environment" hpcgnn_make_venv || return 1
    hpcgnn_check_python "$python" && hpcgnn_check_compiler "$python" || return 1
    printf 'hpcgnn: installing into %s; the log is install.log there. Compiling takes a minute or two\n' \
        "$HPCGNN_VENV" >&2
    : >"$HPCGNN_VENV/install.log"
    rm -f "$HPCGNN_VENV/hpcgnn.stamp" "$HPCGNN_VENV/mpi/checked"
    hpcgnn_timed "build tools" hpcgnn_get_build_tools || return 1
    set -m    # a process group of its own, which can be ended with all its compilers
    hpcgnn_timed "kernels, in the background" hpcgnn_build_kernels </dev/null >"$HPCGNN_VENV/kernels.log" 2>&1 &
    kernels=$!
    set +m
    # shellcheck disable=SC2064    # the process that is known now
    trap "kill -- -$kernels 2>/dev/null || :" EXIT
    if ! "$python" -c 'import torch' 2>/dev/null; then
        hpcgnn_timed "torch" hpcgnn_get_torch || return 1
    fi
    hpcgnn_timed "packages" hpcgnn_get_packages "$@" &&
        hpcgnn_timed "byte code" hpcgnn_write_byte_code "$@" &&
        hpcgnn_timed "rest of the kernels" hpcgnn_wait_for_kernels "$kernels" || return 1
    { hpcgnn_fingerprint && printf 'levels %s\n' "$HPCGNN_LEVELS" && printf 'extra %s\n' "$@"; } >"$HPCGNN_VENV/hpcgnn.stamp"
}
