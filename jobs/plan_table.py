"""Of jobs/benchmark_plan.sh and held_out.sh: `share CLUSTER` adds how a node's ranks share its interface,
`line CLUSTER RATE` the network of a line with a stated rate, and `table FOLDER "RANKS.." "RATE.." "METHOD.."` prints
what was planned beside what was trained.
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path

from hpcgnn.planning.cluster import NETWORKS, TCP_SHARE
from hpcgnn.registry import read_toml

HEADINGS = ("ranks", "line", "method", "bytes planned", "trained", "memory planned, GB", "trained", "error",
            "epoch planned, s", "trained", "error")


def share(cluster: Path) -> None:
    """Add to a measured cluster file what its interface carries: the messages that all ranks of a node sent at once."""
    tables = read_toml(cluster)
    carried = tables["network"]["between_bytes_per_second"] * tables["node"]["ranks"]
    with cluster.open("a") as file:      # [network] is its last table
        file.write(f"nic_bytes_per_second = {carried}\n")


def line(cluster: Path, rate: str) -> None:
    """Add to a cluster file of one node a line of RATE as tc writes it, such as 1gbit, with the preset's latency."""
    carried = TCP_SHARE * float(rate[:-4]) * {"m": 1e6, "g": 1e9}[rate[-4]] / 8
    with cluster.open("a") as file:      # [network] is its last table
        file.write(f"between_latency_seconds = {NETWORKS['ethernet-1g'].latency_seconds}\n"
                   f"between_bytes_per_second = {carried}\nnic_bytes_per_second = {carried}\n")


def cells_of(folder: Path, ranks: str, rate: str, method: str) -> list[str]:
    """Return the texts of a row; the seconds trained are the median of all epochs but the first."""
    plan = json.loads((folder / f"plan-{ranks}-{rate}" / "plan.json").read_text())
    planned = next(one for one in plan["predictions"] if one["method"] == method)
    run = folder / f"run-{ranks}-{rate}-{method}"
    epochs = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()][1:]
    seconds = statistics.median(line["epoch_seconds"] for line in epochs)
    summary = json.loads((run / "summary.json").read_text())
    # A method that sends in one epoch what the next reads has sent the same in every epoch but the first.
    sent = statistics.median(line["sent_bytes_payload"] + line["sent_bytes_parameters"] for line in epochs)
    memory, epoch = planned["peak_bytes"], planned["epoch_seconds"]
    return [ranks, rate, method, f"{planned['sent_bytes_messages_per_epoch']:,.0f}", f"{sent:,.0f}",
            f"{memory / 1e9:.3f}", f"{summary['peak_rss_bytes'] / 1e9:.3f}",
            f"{100 * (memory / summary['peak_rss_bytes'] - 1):+.0f} %",
            f"{epoch:.2f}", f"{seconds:.2f}", f"{100 * (epoch / seconds - 1):+.0f} %"]


def main() -> None:
    """See the module."""
    if sys.argv[1] == "share":
        share(Path(sys.argv[2]))
        return
    if sys.argv[1] == "line":
        line(Path(sys.argv[2]), sys.argv[3])
        return
    print("| " + " | ".join(HEADINGS) + " |\n|" + "---|" * len(HEADINGS))
    for ranks in sys.argv[3].split():
        for rate in sys.argv[4].split():
            for method in sys.argv[5].split():
                print("| " + " | ".join(cells_of(Path(sys.argv[2]), ranks, rate, method)) + " |")


if __name__ == "__main__":
    main()
