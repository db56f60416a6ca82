#!/usr/bin/env bash
# Trains a model whose rows have 1 to 8 bits by in-degree, and shows their widths: examples/degree_aware.sh FOLDER
set -euo pipefail

hpcgnn=${HPCGNN:-hpcgnn}       # or: HPCGNN="python -m hpcgnn", HPCGNN_MPIRUN="mpirun -n 2"
mpirun=${HPCGNN_MPIRUN:-}
ranks=${mpirun##* }
$hpcgnn preprocess synthetic:nodes=2000,mean_degree=10,classes=4,features=64,homophily=0.9 --parts "${ranks:-1}" \
    --out "$1/shards"
$mpirun $hpcgnn train "$1/shards" --model gcn --quantize degree-aware --set quantize_bits=4 --epochs "${EPOCHS:-60}" \
    --out "$1/run"
$hpcgnn report "$1/run"
