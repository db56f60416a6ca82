#!/usr/bin/env bash
# Makes integers of the run that degree_aware.sh has left, and answers with them: examples/integer_inference.sh FOLDER
set -euo pipefail

hpcgnn=${HPCGNN:-hpcgnn}       # or: HPCGNN="python -m hpcgnn", HPCGNN_MPIRUN="mpirun -n 2"
mpirun=${HPCGNN_MPIRUN:-}
$mpirun $hpcgnn quantize "$1/run" "$1/shards" --out "$1/model.h5"
$mpirun $hpcgnn infer "$1/model.h5" "$1/shards" --out "$1/predictions.h5"
