#!/usr/bin/env bash
# Kernels, epochs and memory on this machine's cores against its ceilings, torch, SciPy, PyTorch Geometric and DGL.
# Prints a table and leaves bench.json, table.txt and bench.png for each: kernels (SpMM, quantization, pointwise), epochs of
# GraphSAGE and GCN 3 x 256 in float32 and bfloat16 in one process and on ranks of one thread, exchanges.
# Peers that are not installed are left out, and said so. Nothing else should run on the machine meanwhile.
#   HPCGNN_DATASETS           folder that holds ogbn_arxiv_nofeat.npz and topo_cnr2000.npz (format: docs/own-data.md)
#   HPCGNN_BENCHMARK_THREADS  default: 2
#   HPCGNN_BENCHMARK_EPOCHS   default: 12
#   HPCGNN_BENCHMARK_OUT      default: runs/benchmark-host
set -euo pipefail

here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)
threads=${HPCGNN_BENCHMARK_THREADS:-2}
epochs=${HPCGNN_BENCHMARK_EPOCHS:-12}
# shellcheck source=jobs/benchmark_setup.sh
source "$here/benchmark_setup.sh"
out=${HPCGNN_BENCHMARK_OUT:-runs/benchmark-host}

# installed NAME=PACKAGE...: the names, with commas, whose packages Python finds.
installed() {
    python - "$@" <<'PYTHON'
import importlib.util
import sys

pairs = [pair.split("=") for pair in sys.argv[1:]]
missing = [name for name, package in pairs if importlib.util.find_spec(package) is None]
if missing:
    print("not installed, and left out:", ", ".join(missing), file=sys.stderr)
print(",".join(name for name, _ in pairs if name not in missing))
PYTHON
}

hpcgnn bench kernels "$datasets/ogbn_arxiv_nofeat.npz" "$datasets/topo_cnr2000.npz" drawn:20e6 \
    --threads "$threads" --out "$out/kernels" \
    --peer "$(installed torch=torch scipy=scipy pyg=torch_geometric dgl=dgl)"
hpcgnn bench epoch "$datasets/ogbn_arxiv_nofeat.npz" --model sage,gcn --precision fp32,bf16 --threads "$threads" \
    --ranks "$threads" --epochs "$epochs" --out "$out/epoch" --peer "$(installed dgl=dgl pyg=torch_geometric)"
hpcgnn_mpirun "$threads" hpcgnn bench exchange --out "$out/exchange"
