#!/usr/bin/env bash
# Tables on a disk: seconds per epoch, memory, and bytes written and read, of SAGE 3 x 256 in bfloat16 without a limit of
# memory and within limits. Each limit also holds in a memory cgroup, where one can be made, in which the page cache
# counts too. Prints a table, and leaves the run folders and their logs.
#   HPCGNN_BENCHMARK_NODES     of a synthetic graph; default: 2000000
#   HPCGNN_BENCHMARK_DEGREE    mean in-degree; default: 20
#   HPCGNN_BENCHMARK_FEATURES  default: 128
#   HPCGNN_BENCHMARK_RANKS     default: 2
#   HPCGNN_BENCHMARK_EPOCHS    default: 3
#   HPCGNN_BENCHMARK_MEMORY    limits of all ranks together, the first "0" for none; default: "0 6G 4G"
#   HPCGNN_BENCHMARK_SCRATCH   folder on the disk; default: the run's own
#   HPCGNN_BENCHMARK_OUT       default: runs/benchmark-disk
set -euo pipefail

# shellcheck source=jobs/env.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/env.sh"
cd "$HPCGNN_ROOT"
nodes=${HPCGNN_BENCHMARK_NODES:-2000000}
degree=${HPCGNN_BENCHMARK_DEGREE:-20}
features=${HPCGNN_BENCHMARK_FEATURES:-128}
ranks=${HPCGNN_BENCHMARK_RANKS:-2}
epochs=${HPCGNN_BENCHMARK_EPOCHS:-3}
read -ra limits <<<"${HPCGNN_BENCHMARK_MEMORY:-0 6G 4G}"
out=${HPCGNN_BENCHMARK_OUT:-runs/benchmark-disk}
scratch=${HPCGNN_BENCHMARK_SCRATCH:-$out/scratch}
shards=data/shards/disk-$nodes-$degree-$features-p$ranks
mkdir -p "$out" "$scratch"

# within LIMIT COMMAND...: in a cgroup with 9/8 of this limit of memory (version 1 or 2), for the launcher and pages on
# their way to the disk, or without one, and said so
within() {
    local limit=$1 file group
    shift
    for file in memory/memory.limit_in_bytes memory.max; do
        group=/sys/fs/cgroup/$(dirname "$file")/hpcgnn-$$
        if [[ $limit == 0 ]] || ! mkdir "$group" 2>/dev/null; then
            continue
        fi
        if echo $(($(numfmt --from=iec "$limit") / 8 * 9)) 2>/dev/null >"$group/$(basename "$file")"; then
            (echo "$BASHPID" >"$group/cgroup.procs" && "$@")
            rmdir "$group"
            return
        fi
        rmdir "$group"
    done
    [[ $limit == 0 ]] || echo "no memory cgroup can be made here: the page cache is not limited" >&2
    "$@"
}

[[ -s $shards/graph.h5 ]] || hpcgnn preprocess \
    "synthetic:nodes=$nodes,mean_degree=$degree,classes=32,features=$features" --parts "$ranks" --partitioner ldg \
    --feature-format float16 --out "$shards"
for limit in "${limits[@]}"; do
    run=$out/$limit
    settings=()
    [[ $limit == 0 ]] || settings=(--memory "$limit" --set "scratch=$scratch")
    [[ -f $run/summary.json ]] || within "$limit" hpcgnn_mpirun "$ranks" hpcgnn train "$shards" --layers 3 \
        --hidden 256 --precision bf16 --epochs "$epochs" --eval-every "$epochs" \
        "${settings[@]}" --out "$run" --overwrite 2>&1 | tee "$run.log"
done
python - "$out" "${limits[@]}" <<'PYTHON'
import json
import statistics
import sys
from pathlib import Path

from hpcgnn.run.output import size_text

out, limits = Path(sys.argv[1]), sys.argv[2:]
first = None
print("| memory | seconds per epoch | peak of a rank | tables written and read per epoch | by the system's count | losses |")
print("|---|---|---|---|---|---|")
for limit in limits:
    summary = json.loads((out / limit / "summary.json").read_text())
    records = [json.loads(line) for line in (out / limit / "metrics.jsonl").read_text().splitlines()]
    losses, later = [record["loss"] for record in records], records[1:] or records
    first = first or losses
    pairs = [" and ".join(size_text(statistics.fmean(record.get(f"disk_bytes_{name}", 0) for record in later))
                          for name in names) for names in (("spilled", "fetched"), ("written", "read"))]
    print(f"| {'no limit' if limit == '0' else limit} "
          f"| {statistics.median(record['epoch_seconds'] for record in later):.1f} "
          f"| {size_text(summary['peak_rss_bytes'])} | {pairs[0]} | {pairs[1]} "
          f"| {'equal' if losses == first else 'OTHERS'} |")
PYTHON
