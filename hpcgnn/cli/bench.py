"""`hpcgnn bench`: the machine's ceilings, and how near hpcgnn and its peers come. Arguments in, one result out."""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from hpcgnn.bench import environment
from hpcgnn.bench.peers.names import PEERS, parse_peers
from hpcgnn.cli import bench_device
from hpcgnn.cli.lists import parse_choices, parse_list
from hpcgnn.cli.progress import shown_progress
from hpcgnn.errors import ConfigError

PATH, FILE = click.Path(path_type=Path), click.Path(path_type=Path, dir_okay=False)


def _shared_options(peers: tuple[str, ...]):
    """A decorator that gives a subcommand the options that all have."""
    def add(function):
        for option in (
            click.option("--peer", default="", metavar="LIST",
                         help=f"Compare with these, of {', '.join(peers)}. [default: none]"),
            click.option("--out", type=PATH, help="Folder for bench.json and bench.png."),
            click.option("--repeat", type=click.IntRange(min=1), default=None, help="Repetitions of each."),
            click.option("--threads", type=click.IntRange(min=1), default=None,
                         help="[default: as many as there are cores]"),
        ):
            function = option(function)
        return function

    return add


@click.group("bench", context_settings={"help_option_names": ["-h", "--help"]})
def command() -> None:
    """Measure kernels, epochs and exchanges against the machine's ceilings and against peers."""


command.add_command(bench_device.command)


@command.command("kernels")
@click.option("--graph", "graphs", type=FILE, multiple=True, metavar="FILE.npz",
              help="Graph for SpMM; may be given several times.")
@click.option("--synthetic-edges", type=float, default=0.0, help="Also draw a graph with so many arcs, e.g. 20e6.")
@click.option("--widths", default="256,64,41", show_default=True, help="Columns of the rows in SpMM.")
@click.option("--precision", default="fp32,bf16", show_default=True, help="Of the rows in SpMM.")
@click.option("--rows", type=click.IntRange(min=1), default=85_000, show_default=True,
              help="Rows of the message and of pointwise work.")
@click.option("--width", type=click.IntRange(min=1), default=256, show_default=True, help="Their columns.")
@click.option("--stream-megabytes", type=click.IntRange(min=1), default=256, show_default=True,
              help="Length of the streams of the ceilings.")
@_shared_options(tuple(PEERS))
def kernels(peer: str, out: Path | None, repeat: int | None, threads: int | None, **flags: Any) -> None:
    """Ceilings, SpMM, quantization and pointwise work."""
    peers, widths = parse_peers(peer), parse_list("--widths", flags["widths"], int)
    precisions = parse_choices("--precision", flags["precision"], ("fp32", "bf16"))
    prepare_output(out)
    threads = threads or environment.available_cores()
    environment.run_in(environment.with_kept_memory(environment.thread_environment(threads)))
    machine = announce("kernels", threads)
    from hpcgnn.bench.kernels import KernelBenchmark
    from hpcgnn.bench.timing import Effort

    benchmark = KernelBenchmark(
        graphs=flags["graphs"], synthetic_edges=flags["synthetic_edges"], widths=widths, precisions=precisions,
        num_rows=flags["rows"], width=flags["width"], num_stream_bytes=flags["stream_megabytes"] << 20, peers=peers,
        effort=Effort(repeat or 7))
    finish("kernels", machine, benchmark, out)


@command.command("epoch")
@click.argument("source", type=PATH)
@click.option("--model", default="sage", show_default=True, help="sage, gcn or both with a comma.")
@click.option("--precision", default="fp32", show_default=True, help="Of fp32, bf16, fp16; peers train in fp32.")
@click.option("--ranks", type=click.IntRange(min=0), default=0, help="Also train on so many ranks of one thread.")
@click.option("--epochs", type=click.IntRange(min=3), default=10, show_default=True,
              help="A training; the first two are not counted.")
@click.option("--eval-every", type=click.IntRange(min=0), default=0, show_default=True,
              help="Epochs between evaluations, which are not timed; the test score is that at the best validation "
                   "score. 0: after the last epoch only.")
@click.option("--layers", type=click.IntRange(min=1), default=3, show_default=True)
@click.option("--hidden", type=click.IntRange(min=1), default=256, show_default=True)
@_shared_options(("dgl", "pyg"))
def epoch(source: Path, peer: str, out: Path | None, repeat: int | None, threads: int | None, **flags: Any) -> None:
    """Seconds an epoch on SOURCE, an .npz archive or a folder of shards, and the peak memory of each contestant.

    Contestants train in turn, --repeat times (3), in processes of their own; round r has seed r.
    """
    from hpcgnn.bench.epoch import EpochBenchmark
    from hpcgnn.bench.epoch_runs import find_mpirun

    peers = parse_peers(peer, ("dgl", "pyg"))
    models = parse_choices("--model", flags["model"], ("sage", "gcn"))
    precisions = parse_choices("--precision", flags["precision"], ("fp32", "bf16", "fp16"))
    if flags["ranks"] > 1:
        find_mpirun()
    prepare_output(out)
    threads = threads or environment.available_cores()
    benchmark = EpochBenchmark(
        source=source, models=models, precisions=precisions, threads=threads, num_ranks=flags["ranks"], peers=peers,
        epochs=flags["epochs"], repeat=repeat or 3, layers=flags["layers"], hidden=flags["hidden"],
        eval_every=flags["eval_every"])
    finish("epoch", announce("epoch", threads), benchmark, out)


@command.command("assign")
@click.option("--ranks", type=click.IntRange(min=2), default=8, show_default=True)
@click.option("--rows", default="100000,400000,1600000", show_default=True, metavar="LIST",
              help="Halo rows of all ranks together; one problem size each.")
@click.option("--group-size", type=click.IntRange(min=1), default=500, show_default=True)
@click.option("--widths", default="2,4,8", show_default=True, help="Bit-widths to choose from.")
@click.option("--lam", type=click.FloatRange(0, 1, min_open=True, max_open=True), default=0.5, show_default=True,
              help="Weight of variance against time.")
@click.option("--solver-seconds", type=click.FloatRange(min=0, min_open=True), default=60.0, show_default=True,
              help="Limit of highs a problem.")
@click.option("--gap", type=click.FloatRange(min=0), default=1e-3, show_default=True,
              help="Relative gap at which highs stops.")
@click.option("--repeat", type=click.IntRange(min=1), default=5, show_default=True, help="Problems of each size.")
@click.option("--out", type=PATH, help="Folder for bench.json and bench.png.")
def assign(rows: str, widths: str, repeat: int, out: Path | None, **flags: Any) -> None:
    """Seconds and objective of the solvers that assign bit-widths, on simulated ranges, in one thread."""
    from hpcgnn.adaptive.node_bits import parse_widths
    from hpcgnn.bench.assign import AssignBenchmark

    sizes = parse_list("--rows", rows, int)
    chosen = parse_widths(widths)
    prepare_output(out)
    machine = announce("assign", 1)
    benchmark = AssignBenchmark(
        num_ranks=flags["ranks"], sizes=sizes, group_size=flags["group_size"], widths=chosen, lam=flags["lam"],
        time_limit=flags["solver_seconds"], gap=flags["gap"], repeat=repeat)
    finish("assign", machine, benchmark, out)


@command.command("packages")
@click.option("--rows", type=click.IntRange(min=1), default=100_000, show_default=True)
@click.option("--width", type=click.IntRange(min=1), default=256, show_default=True, help="Their columns.")
@click.option("--bits", default="1,2,4,8,mixed", show_default=True, help="Of the values; mixed draws 1 to 8 a row.")
@click.option("--density", default="0.05,0.5,1", show_default=True, help="Shares of non-zero values.")
@click.option("--repeat", type=click.IntRange(min=1), default=7, show_default=True, help="Repetitions of each.")
@click.option("--threads", type=click.IntRange(min=1), default=1, show_default=True,
              help="Of decoding; encoding and the other formats use one.")
@click.option("--out", type=PATH, help="Folder for bench.json and bench.png.")
def packages(rows: int, width: int, bits: str, density: str, repeat: int, threads: int, out: Path | None) -> None:
    """Encoding and decoding of Adaptive-Package: GB of dense rows a second, and the size of each format."""
    widths = tuple(0 if word == "mixed" else int(word) for word in
                   parse_choices("--bits", bits, (*map(str, range(1, 9)), "mixed")))
    densities = parse_list("--density", density, float)
    if max(densities) > 1:
        raise click.UsageError(f"--density is {density!r}; expected shares from 0 to 1")
    prepare_output(out)
    environment.run_in(environment.with_kept_memory(environment.thread_environment(threads)))
    machine = announce("packages", threads)
    from hpcgnn.bench.packages import PackageBenchmark
    from hpcgnn.bench.timing import Effort

    finish("packages", machine, PackageBenchmark(rows, width, widths, densities, Effort(repeat)), out)


@command.command("combination")
@click.option("--rows", type=click.IntRange(min=1), default=2708, show_default=True)
@click.option("--width", type=click.IntRange(min=1), default=1433, show_default=True, help="Their columns.")
@click.option("--outputs", type=click.IntRange(min=1), default=64, show_default=True, help="Of the linear map.")
@click.option("--bits", default="1,2,4,8", show_default=True, help="Of the codes.")
@click.option("--weight-bits", type=click.IntRange(1, 8), default=4, show_default=True)
@click.option("--density", default="0.01,0.1,0.5,1", show_default=True, help="Shares of non-zero codes.")
@click.option("--repeat", type=click.IntRange(min=1), default=11, show_default=True, help="Repetitions of each.")
@click.option("--threads", type=click.IntRange(min=1), default=1, show_default=True)
@click.option("--out", type=PATH, help="Folder for bench.json and bench.png.")
def combination(rows: int, width: int, outputs: int, bits: str, weight_bits: int, density: str, repeat: int,
                threads: int, out: Path | None) -> None:
    """Codes times weight codes: dense, by bits, and skipping zeros, against torch's int8 and fp32."""
    widths = tuple(int(word) for word in parse_choices("--bits", bits, tuple(map(str, range(1, 9)))))
    densities = parse_list("--density", density, float)
    if max(densities) > 1:
        raise click.UsageError(f"--density is {density!r}; expected shares from 0 to 1")
    prepare_output(out)
    environment.run_in(environment.with_kept_memory(environment.thread_environment(threads)))
    machine = announce("combination", threads)
    from hpcgnn.bench.combination import CombinationBenchmark
    from hpcgnn.bench.timing import Effort

    benchmark = CombinationBenchmark(rows, width, outputs, widths, weight_bits, densities, Effort(repeat))
    finish("combination", machine, benchmark, out)


@command.command("exchange")
@click.option("--rows", type=click.IntRange(min=1), default=50_000, show_default=True,
              help="Rows from each rank to each other.")
@click.option("--width", type=click.IntRange(min=1), default=256, show_default=True, help="Their columns.")
@click.option("--repeat", type=click.IntRange(min=1), default=11, show_default=True, help="Repetitions of each.")
@click.option("--out", type=PATH, help="Folder for bench.json and bench.png.")
def exchange(rows: int, width: int, repeat: int, out: Path | None) -> None:
    """Packing, ring and Alltoallv at each bit-width; run it under mpirun."""
    from hpcgnn.launch import run_parallel

    run_parallel(lambda comm: exchange_in_parallel(comm, rows, width, repeat, out))


def exchange_in_parallel(comm, rows: int, width: int, repeat: int, out: Path | None) -> None:
    """Collective: measure; rank 0 prints and writes.

    Raises
    ------
    ConfigError      there is one rank only
    """
    from hpcgnn.launch import together

    if comm.size < 2:
        raise ConfigError("hpcgnn bench exchange was started on 1 rank and needs two or more; "
                          "run mpirun -n 2 hpcgnn bench exchange")
    together(comm, lambda: prepare_output(out))
    machine = announce("exchange", int(os.environ["OMP_NUM_THREADS"])) if comm.rank == 0 else {}
    # These import torch, which takes seconds.
    from hpcgnn.bench.exchange import ExchangeBenchmark
    from hpcgnn.bench.timing import Effort

    benchmark = ExchangeBenchmark(comm, rows, width, Effort(repeat))
    if comm.rank == 0:
        finish("exchange", {**machine, "ranks": comm.size}, benchmark, out)
    else:
        deque(benchmark.measure(), maxlen=0)


@command.command("bits")
@click.option("--graph", type=FILE, metavar="FILE.npz", help="Graph to cut into batches. [default: a drawn one]")
@click.option("--synthetic-edges", type=click.FloatRange(min=1), default=2e6, show_default=True,
              help="Arcs of the drawn graph.")
@click.option("--sizes", default="2048,4096,8192", show_default=True, help="Rows of a square adjacency.")
@click.option("--dims", default="32,64", show_default=True, help="Columns of the features.")
@click.option("--widths", default="1,2,3,4", show_default=True, help="Bits of the features, 1 to 8.")
@click.option("--clusters", type=click.IntRange(min=1), default=1500, show_default=True, help="Of METIS.")
@click.option("--batch", type=click.IntRange(min=1), default=16, show_default=True, help="Clusters a batch.")
@click.option("--batches", type=click.IntRange(min=1), default=8, show_default=True, help="Batches at most.")
@click.option("--threads", type=click.IntRange(min=1), default=1, show_default=True)
@click.option("--repeat", type=click.IntRange(min=1), default=7, show_default=True, help="Repetitions of each.")
@click.option("--out", type=PATH, help="Folder for bench.json and bench.png.")
def bits(graph: Path | None, sizes: str, dims: str, widths: str, threads: int, repeat: int, out: Path | None,
         **flags: Any) -> None:
    """Products of bits against int8 and fp32, and what jumping and reuse of tiles gain."""
    numbers = {name: parse_list(f"--{name}", text, int)
               for name, text in (("sizes", sizes), ("dims", dims), ("widths", widths))}
    if max(numbers["widths"]) > 8:
        raise click.UsageError(f"--widths has {max(numbers['widths'])}; expected 1 to 8 bits")
    prepare_output(out)
    environment.run_in(environment.with_kept_memory(environment.thread_environment(threads)))
    machine = announce("bits", threads)
    from hpcgnn.bench.bits import BitsBenchmark
    from hpcgnn.bench.graphs import draw_topology, read_topology
    from hpcgnn.bench.timing import Effort

    topology = read_topology(graph) if graph else draw_topology(flags["synthetic_edges"])
    benchmark = BitsBenchmark(**numbers, graph=topology, num_clusters=flags["clusters"], batch_size=flags["batch"],
                              num_batches=flags["batches"], effort=Effort(repeat))
    finish("bits", machine, benchmark, out)


@command.command("inference")
@click.argument("sources", type=FILE, metavar="FILE.npz...", nargs=-1, required=True)
@click.option("--model", default="gcn,gin,sage", show_default=True,
              help="Some of gcn (3 x 16), gin and sage (3 x 64).")
@click.option("--bits", default="2,4,8", show_default=True, help="Of features, weights and what is summed, 2 to 8.")
@click.option("--clusters", type=click.IntRange(min=1), default=1500, show_default=True, help="Of METIS.")
@click.option("--batch-size", type=click.IntRange(min=1), default=16, show_default=True, help="Clusters a batch.")
@click.option("--between-clusters", is_flag=True, help="Keep the arcs between clusters of one batch.")
@_shared_options(("dgl",))
def inference(sources: tuple[Path, ...], peer: str, out: Path | None, repeat: int | None, threads: int | None,
              **flags: Any) -> None:
    """Passes over batches of FILE.npz on integers, by bit tiles and by gathering, and in float32 and bfloat16."""
    peers = parse_peers(peer, ("dgl",))
    models = parse_choices("--model", flags["model"], ("gcn", "gin", "sage"))
    bits = parse_list("--bits", flags["bits"], int)
    if min(bits) < 2 or max(bits) > 8:
        raise click.UsageError(f"--bits is {flags['bits']!r}; expected 2 to 8")
    prepare_output(out)
    threads = threads or environment.available_cores()
    environment.run_in(environment.with_kept_memory(environment.thread_environment(threads)))
    machine = announce("inference", threads)
    from hpcgnn.bench.inference import InferenceBenchmark
    from hpcgnn.bench.timing import Effort

    benchmark = InferenceBenchmark(
        sources=sources, models=models, bits=bits, num_clusters=flags["clusters"], batch_size=flags["batch_size"],
        keeps_all=flags["between_clusters"], peers=peers, effort=Effort(repeat or 11))
    finish("inference", machine, benchmark, out)


@command.command("dram")
@click.argument("source", type=FILE, metavar="FILE.npz")
@click.option("--buffer-kb", type=click.FloatRange(min=0, min_open=True), default=128.0, show_default=True,
              help="KiB of the buffer in front of DRAM.")
@click.option("--line-bytes", type=click.IntRange(min=1), default=128, show_default=True, help="Of one DRAM access.")
@click.option("--policy", type=click.Choice(("lru", "fifo")), default="lru", show_default=True)
@click.option("--sparse-share", type=click.FloatRange(0, 1, min_open=True, max_open=True), default=0.25,
              show_default=True, help="Of the buffer, that condense-edge sets aside for copies.")
@click.option("--bits", type=click.IntRange(1, 32), default=4, show_default=True, help="Of a value.")
@click.option("--dim", type=click.IntRange(min=1), default=128, show_default=True, help="Values of a row.")
@click.option("--pruned", type=click.FloatRange(0, 1), default=0.1, show_default=True,
              help="Share of the arcs that gcod drops.")
@click.option("--shuffle", is_flag=True, help="Shuffle the ids first.")
@click.option("--seed", type=click.IntRange(min=0, max=2**31 - 1), default=0, show_default=True,
              help="Of METIS and of --shuffle.")
@click.option("--widths", default="", metavar="LIST",
              help="Also time the aggregation of fp32 rows of so many columns. [default: none]")
@click.option("--repeat", type=click.IntRange(min=1), default=7, show_default=True, help="Repetitions of each.")
@click.option("--threads", type=click.IntRange(min=1), default=None, help="[default: as many as there are cores]")
@click.option("--out", type=PATH, help="Folder for dram.json, dram.png and, with --widths, bench.json and bench.png.")
def dram(source: Path, widths: str, repeat: int, threads: int | None, out: Path | None, **flags: Any) -> None:
    """Bytes that an aggregation of FILE.npz reads from DRAM, by scheme and by order of rows: MEGA, Fig. 6 and 20b."""
    columns = parse_list("--widths", widths, int) if widths else ()
    prepare_output(out)
    threads = threads or environment.available_cores()
    environment.run_in(environment.with_kept_memory(environment.thread_environment(threads)))
    machine = announce("dram", threads)
    from hpcgnn.bench.dram import DramBenchmark, shuffled
    from hpcgnn.bench.dram_result import show_traffic, write_traffic
    from hpcgnn.bench.graphs import read_topology
    from hpcgnn.bench.timing import Effort
    from hpcgnn.partition.condense_traffic import Buffer

    graph = read_topology(source)
    if flags["shuffle"]:
        graph = shuffled(graph, flags["seed"])
    buffer = Buffer(int(flags["buffer_kb"] * 1024), flags["line_bytes"], flags["policy"], flags["sparse_share"])
    benchmark = DramBenchmark(graph, -(-flags["dim"] * flags["bits"] // 8), buffer, flags["pruned"], flags["seed"],
                              columns, Effort(repeat))
    counts = []
    with said_at_once() as say:
        for group, name, traffic in benchmark.count():
            counts.append((group, name, traffic))
            say(f"{group}: {name}", f"{traffic.total_bytes / 1e6:.4g} MB")
    title = (f"{graph.name}: {flags['dim']} x {flags['bits']} bit, {flags['policy']} buffer of "
             f"{flags['buffer_kb']:g} KiB, lines of {flags['line_bytes']} bytes")
    show_traffic(title, counts)
    if out is not None:
        write_traffic(out, {"title": title, **flags}, machine, counts)
    if columns:
        finish("dram", machine, benchmark, out)


def prepare_output(out: Path | None) -> None:
    """Refuse a folder that can't take the results before minutes are spent on them."""
    if out is not None:
        from hpcgnn.bench.result import open_folder

        open_folder(out)


def announce(kind: str, threads: int) -> dict[str, Any]:
    """Describe the machine, and say what is measured where, before seconds pass with imports, graphs and work."""
    from hpcgnn.bench.machine import describe_machine

    machine = describe_machine(threads)
    click.echo(f"hpcgnn: bench {kind} on {machine['processor']}, {threads} threads, {machine['simd']}, load "
               f"{machine['load_average'][0]:.2f}", err=True)
    return machine


def finish(kind: str, machine: dict[str, Any], benchmark, out: Path | None) -> None:
    """Measure, print the table and write the files."""
    from hpcgnn.bench.result import BenchmarkResult

    result = BenchmarkResult(kind, machine, [])
    with said_at_once() as say:
        for row in benchmark.measure():
            result.measurements.append(row)
            say(f"{row.group}: {row.case}", f"{row.median():.4g} s")
    result.show()
    if out is not None:
        result.write(out)
        click.echo(f"results: {out}")


@contextmanager
def said_at_once() -> Iterator[Callable[[str, str], None]]:
    """Give a function that reports each case and its finding at once: by bars on a terminal, else on standard error."""
    with shown_progress() as progress:
        def say(case: str, found: str) -> None:
            progress(case, None)
            if not sys.stderr.isatty():
                click.echo(f"{case}: {found}", err=True)

        yield say
