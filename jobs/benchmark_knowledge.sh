#!/usr/bin/env bash
# Filtered mean reciprocal ranks on knowledge graphs: ComplEx over a table of rows (examples/knowledge_graph.py) and R-GCN
# with DistMult, with messages of each width; then ComplEx and R-GCN of PyTorch Geometric, and R-GCN of DGL, by their examples' recipes.
#   HPCGNN_DATASETS             folder with links/GRAPH.npz: arrays train, valid, test; head, relation, tail
#   HPCGNN_BENCHMARK_GRAPHS     default: "fb15k237 wn18rr"
#   HPCGNN_BENCHMARK_RANKS      of the trainings that send messages, default: 2; float32 runs on one rank, too
#   HPCGNN_BENCHMARK_BITS       default: "32 8 4 2"
#   HPCGNN_BENCHMARK_SETTINGS   of ComplEx, as in "epochs=3000 dim=300"; default: none, which takes the example's
#   HPCGNN_BENCHMARK_RGCN       of R-GCN; default: the words after of_rgcn= below
#   HPCGNN_BENCHMARK_EPOCHS     of ComplEx and R-GCN of PyTorch Geometric, and of R-GCN of DGL; 0 leaves one out. Default:
#                               "50 0 0", since PyTorch Geometric's R-GCN needs more than 24 GB on FB15k-237
#   HPCGNN_BENCHMARK_OUT        default: runs/benchmark-knowledge; finished runs are not repeated
set -euo pipefail

here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)
# shellcheck source=jobs/benchmark_setup.sh
source "$here/benchmark_setup.sh"
read -ra graphs <<<"${HPCGNN_BENCHMARK_GRAPHS:-fb15k237 wn18rr}"
read -ra widths <<<"${HPCGNN_BENCHMARK_BITS-32 8 4 2}"
read -ra settings <<<"${HPCGNN_BENCHMARK_SETTINGS:-}"
of_rgcn="layers=1 hidden=200 node_embedding=200 num_bases=4 dropout=0 edge_dropout=0.4 decoder=distmult link_share=0.03"
of_rgcn+=" negatives=2048 n3=0.01 lr=0.02 schedule=cosine epochs=500 eval_every=100"
read -ra of_rgcn <<<"${HPCGNN_BENCHMARK_RGCN:-$of_rgcn}"
read -ra epochs <<<"${HPCGNN_BENCHMARK_EPOCHS:-50 0 0}"
ranks=${HPCGNN_BENCHMARK_RANKS:-2}
out=${HPCGNN_BENCHMARK_OUT:-runs/benchmark-knowledge}

# complex and rgcn GRAPH RANKS RUN SETTINGS...
complex() {
    hpcgnn_mpirun "$2" python examples/knowledge_graph.py "data/shards/$1-knowledge-p$2" "${settings[@]}" "${@:4}" \
        out="$3" overwrite=true
}
rgcn() {
    hpcgnn_mpirun "$2" hpcgnn train "data/shards/$1-knowledge-p$2" --task links --model rgcn \
        "${of_rgcn[@]/#/--set=}" "${@:4}" --out "$3" --overwrite
}

for graph in "${graphs[@]}"; do
    archive=$datasets/links/$graph.npz
    for parts in 1 "$ranks"; do
        shards=data/shards/$graph-knowledge-p$parts
        [[ -s $shards/graph.h5 ]] || python examples/knowledge_graph.py "$archive" "$shards" "$parts"
    done
    for bits in none "${widths[@]}"; do
        case $bits in
            none) parts=1 words=() ;;
            32) parts=$ranks words=() ;;
            *) parts=$ranks words=(method=uniform "bits=$bits") ;;
        esac
        run=$out/$graph
        [[ -f $run/complex-$bits/summary.json ]] || complex "$graph" "$parts" "$run/complex-$bits" "${words[@]}"
        [[ -f $run/rgcn-$bits/summary.json ]] || rgcn "$graph" "$parts" "$run/rgcn-$bits" "${words[@]/#/--set=}"
    done
    peers=(complex rgcn dgl)
    for place in "${!epochs[@]}"; do
        [[ ${epochs[place]} == 0 ]] || python "$here/knowledge_peer.py" "$archive" "${peers[place]}" "${epochs[place]}"
    done
done
python - "$out" <<'END'
import json, sys
from pathlib import Path

for path in sorted(Path(sys.argv[1]).glob("*/*/summary.json")):
    run = json.loads(path.read_text())
    print(f"{path.parent.parent.name} {path.parent.name}: {run['epochs']} epochs, {run['median_epoch_seconds']:.2f} s "
          f"and {run['sent_bytes_per_epoch'] / 1e6:.2f} MB an epoch, MRR {run['val_score']:.4f} validation, "
          f"{run['test_score']:.4f} test")
END
