"""`hpcgnn plan`: predicts memory, bytes and seconds of runs before a job is queued."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpcgnn.cli import GivenPath
from hpcgnn.cli.grouped import parse_set
from hpcgnn.cli.measurement import parse_choices, parse_list
from hpcgnn.errors import ConfigError
from hpcgnn.partition.choices import BALANCES, DEFAULT_PARTITIONER, PARTITIONERS
from hpcgnn.run.process import launched_size

if TYPE_CHECKING:
    from hpcgnn.planning.cluster import Cluster

PATH, FILE = GivenPath(), GivenPath(dir_okay=False)
DEFAULT_METHODS = ("vanilla", "uniform:8", "uniform:1", "pipegcn")
PRECISIONS = ("fp32", "bf16", "fp16")
SAMPLE = click.FloatRange(0, 1, min_open=True)


@click.command()
@click.argument("source", required=False)
@click.option("--cluster", type=FILE, help="TOML file with the measured rates of a node's kernels and of the "
              "network; without it and without --node, memory and bytes are planned, and no seconds.")
@click.option("--node", metavar="NAME", help="Plan seconds without a measurement, for a node by its data sheet: "
              "laptop, epyc-2x64, epyc-2x96 or xeon-2x56.")
@click.option("--network", metavar="NAME", help="The network between nodes, by its data sheet: ethernet-1g, -10g, "
              "-25g or -100g, infiniband-hdr or -ndr; with --node, or with a --cluster file that was measured on one "
              "node.")
@click.option("--measure", type=FILE, metavar="FILE",
              help="Measure this machine, write a FILE for --cluster and plan nothing; run it under mpirun with as "
                   "many ranks as a node will have.")
@click.option("--parts", metavar="LIST", help="Numbers of ranks. [default: number of parts in the shards, else "
                                              "4,16,64,256,1024]")
@click.option("--method", metavar="LIST", help="Methods, each METHOD, or uniform:BITS. [default: vanilla,uniform:8,"
              "uniform:1, and pipegcn for epochs of one step]")
@click.option("--model", default="sage", show_default=True, help="Built-in model to plan.")
@click.option("--layers", type=click.IntRange(1, 64), default=3, show_default=True)
@click.option("--hidden", type=click.IntRange(min=1), default=256, show_default=True)
@click.option("--precision", default="fp32", show_default=True, help="Precision of rows and products: fp32, bf16 or "
              "fp16; --measure takes a list.")
@click.option("--set", "assignments", multiple=True, metavar="NAME=VALUE",
              help="Any setting of hpcgnn train, such as steps=4; what a plan can't count is refused. sample=SHARE "
                   "cuts only this share of the graph, and estimates the rest; else a plan samples above 2e8 edges.")
@click.option("--partitioner", type=click.Choice(PARTITIONERS), default=DEFAULT_PARTITIONER, show_default=True)
@click.option("--balance", type=click.Choice(BALANCES),
              help="What the parts share equally. [default: as in hpcgnn preprocess]")
@click.option("--seed", type=click.IntRange(min=0, max=2**31 - 1), default=0, show_default=True,
              help="Seed of the partitioner, and of all random choices.")
@click.option("--symmetrize/--directed", default=False, help="Add the reverse of every edge. [default: directed]")
@click.option("--root", type=PATH, help="Folder of OGB datasets. [default: dataset]")
@click.option("--make-labels", type=click.IntRange(min=2), metavar="K",
              help="For a graph without labels: K classes made from the graph, as in hpcgnn preprocess.")
@click.option("--as", "larger", metavar="SIZES",
              help="Predict a larger graph of the same kind from SOURCE's parts: nodes=N,edges=N,features=N,classes=N "
                   "and optionally train=N; edges count in both directions.")
@click.option("--out", type=PATH, help="Folder for plan.json, table.txt and plan.png.")
@click.option("--trace", type=PATH, metavar="DIR",
              help="Folder for the actions of every rank in an epoch, a folder for each run, which SimGrid replays on "
                   "any network (jobs/replay.sh); needs --node or --cluster.")
def command(source: str | None, cluster: Path | None, measure: Path | None, node: str | None, network: str | None,
            **flags: Any) -> None:
    """Predict memory, bytes and seconds of training SOURCE on many ranks, and recommend a run.

    SOURCE is a source graph of hpcgnn preprocess, which is cut into each number of parts, or a folder of shards; the
    plan for the shards' own parts is exact in rows and bytes.
    """
    if measure is not None:
        if (source, cluster, node, network) != (None,) * 4:
            raise click.UsageError("--measure writes a cluster file and plans nothing; leave SOURCE, --cluster, --node "
                                   "and --network out")
        from hpcgnn.run.launch import run_parallel

        precisions = parse_choices("--precision", flags["precision"], PRECISIONS)
        run_parallel(lambda comm: measure_in_parallel(comm, measure, precisions))
        return
    if source is None:
        raise click.UsageError("a plan needs SOURCE; give a source graph, a folder of shards, or --measure FILE")
    if cluster is not None and node is not None:
        raise click.UsageError("--cluster and --node both say what a node can do; leave one of them out")
    if network is not None and cluster is None and node is None:
        raise click.UsageError("--network needs the rates of a node, too; add --node NAME or --cluster FILE")
    if flags["trace"] is not None and cluster is None and node is None:
        raise click.UsageError("--trace needs the rates of a node; add --node NAME or --cluster FILE")
    variable, size = launched_size()
    if size != "1":
        raise ConfigError(f"hpcgnn plan SOURCE runs in one process, and {size} ranks were started ({variable}={size}); "
                          "run it without mpirun or srun")
    parse_choices("--precision", flags["precision"], PRECISIONS)
    if "," in flags["precision"]:
        raise click.UsageError(f"--precision is {flags['precision']!r}; a plan has one precision")
    parts = None if flags["parts"] is None else sorted(set(parse_list("--parts", flags["parts"], int)))
    plan(source, (cluster, node, network), parts, flags)


def measure_in_parallel(comm, file: Path, precisions: tuple[str, ...]) -> None:
    """Collective: measure this node's rates on all ranks; rank 0 writes the file."""
    from hpcgnn.run.launch import together

    together(comm, lambda: check_writable(file) if comm.rank == 0 else None)
    # Imports that a rank of a training has before it reads its part.
    import hpcgnn.training.job  # noqa: F401
    from hpcgnn.bench.exchange import RanksPlace
    from hpcgnn.bench.machine import describe_machine
    from hpcgnn.bench.rates import NodeRates
    from hpcgnn.bench.timing import Effort, say_nothing
    from hpcgnn.cli.measurement import Steps
    from hpcgnn.planning.cluster import cluster_text

    machine = describe_machine(int(os.environ["OMP_NUM_THREADS"]))
    steps = Steps.watched()
    begin = steps.begin if comm.rank == 0 else say_nothing
    place = RanksPlace(Effort(repeat=5, seconds=10.0), begin=begin, comm=comm)
    if comm.rank == 0:
        with steps:
            tables = NodeRates(place, precisions).measure()
        load = machine["load_average"][0]
        tables["node"] |= {"processor": machine["processor"],
                           "measured": f"{machine['date']}, commit {machine['commit']}, load {load:.2f}"}
        file.write_text(cluster_text(tables, REMARKS))
        click.echo(f"cluster file: {file}, of {comm.size} {'rank' if comm.size == 1 else 'ranks'} with "
                   f"{machine['threads']} threads, load {load:.2f}")
    else:
        NodeRates(place, precisions).measure()


REMARKS = ["Rates of one rank while all ranks of its node compute, as hpcgnn plan --measure found them.",
           "Ranks are laid out node by node. For runs on several nodes give hpcgnn plan --network NAME, or add to",
           "[network], from its maker or as measured with ranks on two nodes: between_latency_seconds,",
           "between_bytes_per_second (of one message), and nic_bytes_per_second (of all messages of a node together,",
           "each way)."]


def check_writable(file: Path) -> None:
    """Raise ConfigError if the file can't be written."""
    try:
        file.touch()
    except OSError as error:
        raise ConfigError(f"the cluster file {file} can't be written: {error.strerror}") from error


def plan(source: str, rates: tuple[Path | None, str | None, str | None], parts: list[int] | None,
         flags: dict[str, Any]) -> None:
    # These import NumPy and SciPy, which help need not wait for.
    from hpcgnn.cli.plan_text import plan_text
    from hpcgnn.cli.progress import shown_progress
    from hpcgnn.cli.train import read_assignments
    from hpcgnn.planning.planner import Choices, make_plan

    of_sample = tuple(word for word in flags["assignments"] if word.startswith("sample="))
    sample = parse_set(of_sample, {"sample": SAMPLE}).get("sample")
    settings = read_assignments(tuple(word for word in flags["assignments"] if word not in of_sample))
    for name in settings.keys() & (flags.keys() | {"bits"}):
        raise click.UsageError(f"--set {name} can't be planned; use --"
                               + ("method uniform:BITS" if name == "bits" else name))
    methods = flags["method"] or ",".join(DEFAULT_METHODS[:3 if "steps" in settings else 4])
    cluster = cluster_of(*rates, settings.get("ranks_per_node"))
    if cluster is not None:
        cluster.rates_of(flags["precision"])
    of_model = {name: settings.pop(name) for name in ("norm", "dropout") if name in settings}
    choices = Choices(parts, tuple(dict.fromkeys(methods.split(","))), **of_model,
                      **{name: flags[name] for name in ("model", "layers", "hidden", "precision", "partitioner",
                                                        "balance", "seed", "symmetrize", "root", "make_labels",
                                                        "larger")}, sample=sample, settings=settings)
    out, traced = flags["out"], flags["trace"]
    if out is not None:
        from hpcgnn.bench.result import open_folder

        open_folder(out)
    with shown_progress() as progress:
        made = make_plan(source, cluster, choices, progress)
    text = plan_text(made)
    click.echo(text, nl=False)
    if out is not None:
        write_plan(made, text, out)
    if traced is not None:
        from hpcgnn.planning.traces import write_traces

        for one in made.predictions:
            write_traces(traced, one, made.size, made.cluster)
        click.echo(f"traces: {traced}, {len(made.predictions)} "
                   f"{'run' if len(made.predictions) == 1 else 'runs'}; jobs/replay.sh replays such traces")


def cluster_of(file: Path | None, node: str | None, network: str | None, ranks_per_node: int | None) -> Cluster | None:
    """The cluster of a file or of presets; None without both. Raises ConfigError as `read_cluster` and the presets."""
    from hpcgnn.planning.cluster import preset_cluster, read_cluster, with_network

    if node is not None:
        return preset_cluster(node, network, ranks_per_node)
    if file is None:
        return None
    return read_cluster(file) if network is None else with_network(read_cluster(file), network)


def write_plan(made, text: str, out: Path) -> None:
    """Write plan.json, table.txt and, if it can be drawn, plan.png.

    Raises ConfigError if a file can't be written.
    """
    import json

    from hpcgnn.bench.result import why_no_picture
    from hpcgnn.cli.plan_text import draw_plan
    from hpcgnn.planning.planner import plan_record

    missing = why_no_picture("plan.png")
    try:
        (out / "plan.json").write_text(json.dumps(plan_record(made), indent=1) + "\n")
        (out / "table.txt").write_text(text)
        if missing is None:
            draw_plan(made).savefig(out / "plan.png", dpi=150)
    except OSError as error:
        raise ConfigError(f"--out {out} can't hold the plan: {error.strerror}") from error
    click.echo(f"results: {out}" + (f"; {missing}" if missing else ""))
