#!/usr/bin/env bash
# Predictions that were written before anything was trained: rates come from one host alone, the line from its stated rate,
# and no training is looked at until all plans are in predictions.txt, with their times and checksums. Then it trains, and
# prints the error of each row. The two hosts are network namespaces. Needs an idle machine, root, iproute2 (ip, tc) and
# the tbf queue discipline; without them it says so and ends with 0.
#   HPCGNN_HELD_OUT_GRAPH     source of the shards; default: a block model of 169 k nodes
#   HPCGNN_HELD_OUT_RANKS     even numbers, half of them on each host; default: "2 4 8"
#   HPCGNN_HELD_OUT_RATES     of the line, as tc writes them; default: "1gbit 200mbit"
#   HPCGNN_HELD_OUT_METHODS   METHOD or METHOD:BITS; default: "vanilla uniform:8 uniform:1 pipegcn"
#   HPCGNN_HELD_OUT_HIDDEN    columns of hidden rows; default: 256
#   HPCGNN_HELD_OUT_EPOCHS    of a training; the first is not counted; default: 6
#   HPCGNN_HELD_OUT_OUT       default: runs/held-out; replaced
set -euo pipefail

here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)
# shellcheck source=jobs/two_hosts.sh
source "$here/two_hosts.sh"
require_two_hosts
# shellcheck source=jobs/env.sh
source "$here/env.sh"
cd "$HPCGNN_ROOT"
read -ra counts <<<"${HPCGNN_HELD_OUT_RANKS:-2 4 8}"
read -ra rates <<<"${HPCGNN_HELD_OUT_RATES:-1gbit 200mbit}"
read -ra methods <<<"${HPCGNN_HELD_OUT_METHODS:-vanilla uniform:8 uniform:1 pipegcn}"
hidden=${HPCGNN_HELD_OUT_HIDDEN:-256} epochs=${HPCGNN_HELD_OUT_EPOCHS:-6}
out=${HPCGNN_HELD_OUT_OUT:-runs/held-out}
graph=${HPCGNN_HELD_OUT_GRAPH:-synthetic:nodes=169343,mean_degree=12.56,classes=40,features=128}
rm -rf "$out"
mkdir -p "$out"
quiet=(env OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive)

for ranks in "${counts[@]}"; do
    shards=$out/shards-$ranks
    hpcgnn preprocess "$graph" --out "$shards" --parts "$ranks" >/dev/null
    open_two_hosts "$((ranks / 2))"
    # On the first host alone, with as many ranks as it will have.
    on_first_host "${quiet[@]}" "$MPIRUN" -n "$((ranks / 2))" hpcgnn plan --measure "$out/$ranks.toml" >/dev/null
    for rate in "${rates[@]}"; do
        cp "$out/$ranks.toml" "$out/$ranks-$rate.toml"
        python "$here/plan_table.py" line "$out/$ranks-$rate.toml" "$rate"
        hpcgnn plan "$shards" --cluster "$out/$ranks-$rate.toml" --hidden "$hidden" \
            --method "$(IFS=,; echo "${methods[*]}")" --out "$out/plan-$ranks-$rate" >/dev/null
        echo "$(date -u +%FT%TZ) $(sha256sum "$out/plan-$ranks-$rate/plan.json")" >>"$out/predictions.txt"
    done
done
echo "predictions, written before the first training:"
cat "$out/predictions.txt"

for ranks in "${counts[@]}"; do
    open_two_hosts "$((ranks / 2))"
    for rate in "${rates[@]}"; do
        shape "$rate"
        for method in "${methods[@]}"; do
            bits=()
            [[ $method != *:* ]] || bits=(--bits "${method#*:}")
            on_first_host "${quiet[@]}" "$MPIRUN" "${launch[@]}" -n "$ranks" hpcgnn train "$out/shards-$ranks" \
                --layers 3 --hidden "$hidden" --epochs "$epochs" --eval-every "$epochs" --checkpoint-every 0 \
                --method "${method%:*}" "${bits[@]}" --out "$out/run-$ranks-$rate-$method" --overwrite >/dev/null
        done
    done
done
sha256sum --quiet -c <(cut -d' ' -f2- "$out/predictions.txt")
python "$here/plan_table.py" table "$out" "${counts[*]}" "${rates[*]}" "${methods[*]}"
