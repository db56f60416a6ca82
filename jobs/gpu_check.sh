#!/usr/bin/env bash
# Everything that needs a GPU, from a clone and without a network: builds the extension in place, runs the tests of the
# kernels, exchange and training on the device, compiles every kernel by nvcc for sm_75, sm_80 and sm_90, runs
# compute-sanitizer over one case of each kernel test, and measures `hpcgnn bench kernels|bits|inference --device cuda`.
# Needs CUDA, and a Python with torch, cupy, mpi4py and what the package and pytest need. Each part has a time limit,
# under 8 minutes in all; one that fails stops no other. Leaves gpu-check.log, and bench.json and table.txt in a folder a
# benchmark. The last line, `N parts passed, N failed, N left out`, and the exit status say how it went.
#   HPCGNN_PYTHON            the interpreter                               default: python3
#   HPCGNN_DATASETS          folder with ogbn_arxiv_nofeat.npz, topo_uk2007_100k.npz and pubmed.npz; unset: drawn graphs only
#   HPCGNN_GPU_CHECK_SCALE   times the limits, for a slow machine          default: 1
#   OUT                      folder of the results                         default: build/gpu-check
set -euo pipefail

cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
python=${HPCGNN_PYTHON:-python3}
out=${OUT:-build/gpu-check}
scale=${HPCGNN_GPU_CHECK_SCALE:-1}
passed=() failed=() left_out=()

command -v "$python" >/dev/null ||
    { printf 'gpu_check: there is no %s; set HPCGNN_PYTHON to a Python with torch and cupy\n' "$python" >&2; exit 1; }
[[ $scale =~ ^[1-9][0-9]*$ ]] ||
    { printf 'gpu_check: HPCGNN_GPU_CHECK_SCALE is "%s"; expected a whole number\n' "$scale" >&2; exit 1; }

# part NAME SECONDS COMMAND...
part() {
    local name=$1 limit=$(($2 * scale)) started=$SECONDS status=0 reason=
    shift 2
    printf '\n== %s\n' "$name"
    timeout -k 10 "$limit" "$@" || status=$?
    if ((status == 0)); then
        passed+=("$name")
        printf -- '-- %s passed in %d s\n' "$name" $((SECONDS - started))
    else
        failed+=("$name")
        ((status != 124 && status != 137)) || reason=", its limit of $limit s"
        printf -- '-- %s failed after %d s with status %d%s\n' "$name" $((SECONDS - started)) "$status" "$reason"
    fi
}

leave_out() {
    left_out+=("$1")
    printf '\n== %s: left out, %s\n' "$1" "$2"
}

# has PACKAGE...: whether Python finds all of them.
has() {
    "$python" -c 'import importlib.util as u, sys; sys.exit(any(u.find_spec(n) is None for n in sys.argv[1:]))' "$@"
}

run_tests() {
    local pytest=("$python" -m pytest -q -p no:cacheprovider) serial=() many=()
    # Marks of mpi-pytest: the serial ones, in this one process.
    ! has pytest_mpi || serial=(-m "parallel[1]")
    ! has xdist || many=(--numprocesses auto --maxprocesses 8 --dist loadfile)
    part "tests of kernels" 100 "${pytest[@]}" "${serial[@]}" "${many[@]}" tests/cuda \
        --ignore tests/cuda/test_compile.py --ignore tests/cuda/test_emulation.py \
        --ignore tests/cuda/test_planted_faults.py
    if has pytest_mpi h5py; then
        part "tests of exchange and training" 40 "${pytest[@]}" "${serial[@]}" "${many[@]}" tests/exchange \
            tests/training tests/inference/test_device.py tests/cli/test_infer_device.py -k "device or cuda or gpu"
    else
        leave_out "tests of exchange and training" "mpi-pytest or h5py is not installed"
    fi
    if command -v nvcc >/dev/null; then
        # One file, whose tests are dealt out one by one.
        part "nvcc" 40 "${pytest[@]}" "${serial[@]}" "${many[@]/loadfile/load}" tests/cuda/test_compile.py -k nvcc
    else
        leave_out "nvcc" "it is not on PATH"
    fi
    run_sanitizer "${pytest[@]}" "${serial[@]}" -p short_selection tests/cuda
}

# run_sanitizer COMMAND...
run_sanitizer() {
    local tool
    for tool in memcheck racecheck; do
        if command -v compute-sanitizer >/dev/null; then
            # torch's allocator would hide an access beyond a tensor inside of one large allocation.
            part "$tool" 40 env PYTORCH_NO_CUDA_MEMORY_CACHING=1 PYTHONPATH="jobs${PYTHONPATH:+:$PYTHONPATH}" \
                compute-sanitizer --tool "$tool" --error-exitcode 9 --report-api-errors no "$@"
        else
            leave_out "$tool" "compute-sanitizer is not on PATH"
        fi
    done
}

run_benchmarks() {
    local graphs=() name
    for name in ogbn_arxiv_nofeat topo_uk2007_100k; do
        if [[ -f ${HPCGNN_DATASETS:-}/$name.npz ]]; then
            graphs+=("$HPCGNN_DATASETS/$name.npz")
        else
            printf '\n%s.npz is not in HPCGNN_DATASETS; the benchmarks go without it\n' "$name"
        fi
    done
    part "benchmark of bits" 30 "$python" -m hpcgnn bench bits --device cuda --out "$out/bits"
    if [[ -f ${HPCGNN_DATASETS:-}/pubmed.npz ]]; then
        part "benchmark of inference" 40 "$python" -m hpcgnn bench --repeat 10 inference "$HPCGNN_DATASETS/pubmed.npz" \
            --device cuda --peer torch --out "$out/inference"
    else
        leave_out "benchmark of inference" "pubmed.npz is not in HPCGNN_DATASETS"
    fi
    part "benchmark of kernels" 60 "$python" -m hpcgnn bench kernels --device cuda --peer torch --widths 64,256 \
        --precision fp32,fp16,bf16 --out "$out/kernels" "${graphs[@]}" drawn:100e6
}

check() {
    part "build" 80 "$python" setup.py -q build_ext --inplace
    run_tests
    run_benchmarks
    printf '\nresults: %s, after %d s\n' "$out" "$SECONDS"
    ((${#failed[@]} == 0)) || { printf 'failed:'; printf ' [%s]' "${failed[@]}"; printf '\n'; }
    printf '%d parts passed, %d failed, %d left out\n' "${#passed[@]}" "${#failed[@]}" "${#left_out[@]}"
    ((${#failed[@]} == 0))
}

machine=$("$python" jobs/gpu_prerequisites.py) || exit 1
mkdir -p "$out"
{ printf '%s\n' "$machine"; check; } 2>&1 | tee "$out/gpu-check.log"
