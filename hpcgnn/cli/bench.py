"""`hpcgnn bench`: the machine's ceilings, and how near hpcgnn and its peers come to them."""

from __future__ import annotations

import os
import signal
from collections import deque
from pathlib import Path
from typing import Any

import click

from hpcgnn.bench import environment
from hpcgnn.bench.peers import PEERS, parse_peers
from hpcgnn.cli import GivenPath
from hpcgnn.cli.measurement import (
    Shared,
    SharedOptionsGroup,
    announce,
    check_graphs,
    finish,
    open_place,
    parse_choices,
    parse_list,
    prepare_output,
    say_results,
)
from hpcgnn.errors import ConfigError
from hpcgnn.run.output import time_text

PATH, FILE = GivenPath(), GivenPath(dir_okay=False)
PRECISIONS = ("fp32", "fp16", "bf16")
IN_PROCESS = ("pyg", "pyg-in-process", "pyg-compiled")     # peers that can train with ours in one process
ON_DEVICE = ("epoch", "inference", "kernels")     # benchmarks that also run on a GPU


@click.group("bench", cls=SharedOptionsGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--repeat", type=click.IntRange(min=1), help="Repetitions of each contestant. [default: 3 to 20]")
@click.option("--threads", type=click.IntRange(min=1), help="[default: as many as there are cores]")
@click.option("--out", type=PATH, help="Folder for bench.json, table.txt and bench.png; the first two are rewritten "
                                       "after every row.")
@click.option("--device", type=click.Choice(("cpu", "cuda")), default="cpu", show_default=True,
              help=f"cuda is for {', '.join(ON_DEVICE)}.")
@click.pass_context
def command(ctx: click.Context, repeat: int | None, threads: int | None, out: Path | None, device: str) -> None:
    """Measure kernels, epochs and exchanges against the machine's ceilings and against peers.

    These options may also follow the command.
    """
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)      # a training that was started here ends too
    ctx.call_on_close(lambda: signal.signal(signal.SIGTERM, before))
    if device != "cpu" and ctx.invoked_subcommand not in ON_DEVICE:
        raise click.UsageError(f"--device {device} is not for this benchmark, but for {', '.join(ON_DEVICE)}")
    ctx.obj = Shared(repeat, threads, out, device)


def _peer_option(peers: tuple[str, ...]):
    return click.option("--peer", default="", metavar="LIST",
                        help=f"Libraries to compare with, of {', '.join(peers)}. [default: none]")


_graphs_argument = click.argument("graphs", metavar="[GRAPH]...", nargs=-1)


@command.command("kernels")
@_graphs_argument
@click.option("--widths", default="256,64,41", show_default=True, help="Columns of the rows in products.")
@click.option("--precision", default="fp32,bf16", show_default=True, help="Precision of rows; messages have their own.")
@_peer_option(tuple(PEERS))
@click.pass_obj
def kernels(shared: Shared, graphs: tuple[str, ...], widths: str, precision: str, peer: str) -> None:
    """Measure ceilings, messages, pointwise work, and products over each GRAPH: an .npz archive, or drawn:EDGES.

    On a GPU, with --device cuda, torch (with its cuSPARSE) is the only peer.
    """
    peers = parse_peers(peer, tuple(PEERS) if shared.device == "cpu" else ("torch",))
    columns = parse_list("--widths", widths, int)
    precisions = parse_choices("--precision", precision, PRECISIONS)
    machine, place = open_place("kernels", shared, shared.threads or environment.available_cores())
    check_graphs(graphs)
    from hpcgnn.bench.kernels import KernelBenchmark

    benchmark = KernelBenchmark(place, graphs, columns, precisions, peers)
    finish("kernels", machine, benchmark, shared, benchmark.failures)


@command.command("epoch")
@click.argument("source", type=PATH)
@click.option("--model", default="sage", show_default=True, help="Models: sage, gcn and, in one process, gat.")
@click.option("--precision", default="fp32", show_default=True,
              help="Precision of rows and products: fp32, bf16 or fp16 (peers: fp32). In one process: fp32, tf32 or "
                   "bf16, for peers too.")
@click.option("--ranks", type=click.IntRange(min=0), default=0,
              help="Also train on this many ranks with one thread each; in one process: on the same device.")
@click.option("--epochs", type=click.IntRange(min=3), default=10, show_default=True,
              help="Epochs per training; the first two are not counted. In one process: epochs that are timed.")
@click.option("--hidden", type=click.IntRange(min=1), default=256, show_default=True)
@_peer_option(("dgl", *IN_PROCESS))
@click.pass_obj
def epoch(shared: Shared, source: Path, ranks: int, **flags: Any) -> None:
    """Time an epoch on SOURCE, an .npz archive or a folder of shards, and take the peak memory of each contestant.

    Contestants train in turn, --repeat times (3), each in its own processes; round r has seed r. With --device cuda, a
    SOURCE drawn:EDGES,NODES, or one of the peers pyg-in-process and pyg-compiled, they train once, in this process,
    from the same weights, and their losses are compared: hpcgnn, PyTorch Geometric by a CSR matrix and by edges, and
    with pyg-compiled also by edges under torch.compile.
    """
    from hpcgnn.bench.epoch import find_mpirun

    if ranks > 1:
        find_mpirun()
    asked = {name.strip() for name in flags["peer"].split(",")}
    if shared.device == "cuda" or asked & set(IN_PROCESS[1:]) or str(source).startswith("drawn:"):
        time_in_process(shared, str(source), ranks, flags)
        return
    from hpcgnn.bench.epoch import EpochBenchmark

    peers = parse_peers(flags["peer"], ("dgl", *IN_PROCESS))
    models = parse_choices("--model", flags["model"], ("sage", "gcn"))
    precisions = parse_choices("--precision", flags["precision"], PRECISIONS)
    prepare_output(shared.out)
    threads = shared.threads or environment.available_cores()
    benchmark = EpochBenchmark(source, models, precisions, threads, ranks, peers, flags["epochs"], shared.repeat or 3,
                               flags["hidden"], shared.steps.begin)
    finish("epoch", announce("epoch", threads), benchmark, shared)


def time_in_process(shared: Shared, source: str, ranks: int, flags: dict[str, Any]) -> None:
    if shared.repeat is not None:
        raise click.UsageError("--repeat is not for epochs in one process: --epochs says how many are timed")
    peers = parse_peers(flags["peer"], IN_PROCESS)
    models = parse_choices("--model", flags["model"], ("sage", "gcn", "gat"))
    precisions = parse_choices("--precision", flags["precision"], ("fp32", "tf32", "bf16"))
    machine, _ = open_place("epoch", shared, shared.threads or environment.available_cores())
    from hpcgnn.bench.epoch_in_process import InProcessEpochs
    from hpcgnn.run.launch import run_parallel

    def measure(comm: Any) -> None:
        benchmark = InProcessEpochs(comm, source, shared.device, models, precisions, bool(peers),
                                    "pyg-compiled" in peers, flags["epochs"], flags["hidden"], ranks,
                                    shared.steps.begin)
        finish("epoch", machine, benchmark, shared, benchmark.failures)

    run_parallel(measure)


@command.command("ranks")
@click.option("--ranks", default="64,1024,10000", show_default=True, metavar="LIST",
              help="Numbers of ranks of the modeled training.")
@click.option("--neighbors", default="10,100,1000", show_default=True, metavar="LIST",
              help="Ranks that a rank shares rows with; if there are fewer ranks, all of them.")
@click.pass_obj
def ranks(shared: Shared, ranks: str, neighbors: str) -> None:
    """Measure seconds and memory of one rank's work for its neighbors, in one process without a network."""
    shared.refuse_threads("a rank's own work has one")
    num_ranks, num_neighbors = parse_list("--ranks", ranks, int), parse_list("--neighbors", neighbors, int)
    if min(num_ranks) < 2 or min(num_neighbors) < 1:
        raise click.UsageError(f"--ranks is {ranks!r} and --neighbors {neighbors!r}; expected numbers from 2 and from "
                               "1 on")
    prepare_output(shared.out)
    machine = announce("ranks", 1)
    from hpcgnn.bench.ranks import ROWS, RanksBenchmark, RanksResult

    benchmark = RanksBenchmark(num_ranks, num_neighbors, ROWS, shared.repeat or 5, shared.steps.begin)
    finish("ranks", machine, benchmark, shared, result_type=RanksResult)


@command.command("exchange")
@click.option("--rows", type=click.IntRange(min=1), default=50_000, show_default=True,
              help="Rows that each rank sends to each other rank.")
@click.pass_obj
def exchange(shared: Shared, rows: int) -> None:
    """Time packing, ring and Alltoallv at each bit-width; run it under mpirun."""
    shared.refuse_threads("set OMP_NUM_THREADS for the ranks")
    from hpcgnn.run.launch import run_parallel

    run_parallel(lambda comm: exchange_in_parallel(comm, rows, shared))


def exchange_in_parallel(comm, rows: int, shared: Shared) -> None:
    """Collective: measure; rank 0 prints and writes. Raises ConfigError if there is only one rank."""
    from hpcgnn.run.launch import together

    if comm.size < 2:
        raise ConfigError("hpcgnn bench exchange was started on 1 rank and needs two or more; "
                          "run mpirun -n 2 hpcgnn bench exchange")
    together(comm, lambda: prepare_output(shared.out))
    machine = announce("exchange", int(os.environ["OMP_NUM_THREADS"])) if comm.rank == 0 else {}
    # These import torch, which takes seconds.
    from hpcgnn.bench.exchange import ExchangeBenchmark, RanksPlace
    from hpcgnn.bench.timing import Effort, say_nothing

    begin = shared.steps.begin if comm.rank == 0 else say_nothing
    benchmark = ExchangeBenchmark(RanksPlace(Effort(shared.repeat or 11), begin=begin, comm=comm), rows)
    if comm.rank == 0:
        finish("exchange", {**machine, "ranks": comm.size}, benchmark, shared)
    else:
        deque(benchmark.measure(), maxlen=0)


@command.command("inference")
@click.argument("sources", type=FILE, metavar="FILE...", nargs=-1, required=True)
@click.option("--model", default="gcn,gin,sage", show_default=True,
              help="Models with random weights, if no FILE is a model: gcn (3 x 16), gin and sage (3 x 64).")
@click.option("--bits", default="2,4,8", show_default=True,
              help="Bits of features, weights and sums in models with random weights, 2 to 8.")
@click.option("--clusters", type=click.IntRange(min=0), default=1500, show_default=True,
              help="METIS clusters, 16 per batch; 0 infers on the whole graph at once.")
@_peer_option(("dgl", "torch"))
@click.pass_obj
def inference(shared: Shared, sources: tuple[Path, ...], model: str, bits: str, clusters: int, peer: str) -> None:
    """Time inference on integers, by bit tiles and by gathering, over batches or whole graphs, and in floats.

    FILE is a graph, an .npz archive, or a model of hpcgnn quantize, an .h5 file. A model runs on the graph that it was
    made on, so name that archive too. The peer torch multiplies by a sparse matrix, with linear maps in float32 and in
    dynamically quantized int8. With --device cuda everything is on a GPU, torch is the only peer, in float32 and
    float16, and batches are also timed with copies to and from the GPU.
    """
    peers = parse_peers(peer, ("dgl", "torch") if shared.device == "cpu" else ("torch",))
    models = parse_choices("--model", model, ("gcn", "gin", "sage"))
    widths = parse_list("--bits", bits, int)
    if min(widths) < 2 or max(widths) > 8:
        raise click.UsageError(f"--bits is {bits!r}; expected 2 to 8")
    trained = tuple(path for path in sources if path.suffix == ".h5")
    graphs = tuple(path for path in sources if path.suffix != ".h5")
    machine, place = open_place("inference", shared, shared.threads or environment.available_cores(), repeat=11)
    from hpcgnn.bench.inference import InferenceBenchmark

    finish("inference", machine, InferenceBenchmark(place, graphs, trained, models, widths, clusters, peers), shared)


@command.command("accelerator")
@click.argument("sources", metavar="FILE...", nargs=-1, required=True)
@click.option("--designs", default="mega,hygcn,gcnax,grow,sgcn", show_default=True, metavar="LIST",
              help="Accelerators: names that come with hpcgnn, and TOML files of your own.")
@click.option("--sweep", metavar="PATH=VALUES", help="Run the first design with other numbers instead, as in "
              "buffers.input=16:256 (doubling), rules.schedule=condense,metis or workload.bit_width=1,2,4,8.")
@click.pass_obj
def accelerator(shared: Shared, sources: tuple[str, ...], designs: str, sweep: str | None) -> None:
    """Model cycles, DRAM and energy of inferences on MEGA's accelerator, HyGCN, GCNAX, GROW and SGCN.

    FILE is a graph, an .npz archive, or a model of hpcgnn quantize, an .h5 file. A model runs on the graph that it was
    made on, so name that archive too. A graph without a model gets GCN, GIN and SAGE of two layers with assumed widths,
    or one of them (GRAPH.npz:gcn). drawn:nell, drawn:reddit and drawn:products are random graphs with the sizes of
    these data sets. --out gets accelerator.json and accelerator.png.
    """
    if shared.repeat is not None:
        raise click.UsageError("--repeat is not for this benchmark: a model has the same cycles every time")
    shared.refuse_threads("the model runs on one")
    # These import NumPy, which help need not wait for.
    from hpcgnn.accelerators.design import read_design
    from hpcgnn.bench.accelerator_workload import Sweep, draw_degrees

    chosen = tuple(read_design(name) for name in dict.fromkeys(designs.split(",")))
    points = None if sweep is None else Sweep.parse(sweep)
    environment.run_in(environment.with_kept_memory(environment.thread_environment(environment.available_cores())))
    from hpcgnn.bench import accelerator as modeled
    from hpcgnn.bench.result import why_no_picture

    prepare_output(shared.out)
    machine = announce("accelerator", 1)
    found, degrees = [], []
    with shared.steps as steps:
        steps.begin("reads graphs and models")
        for outcome, seconds in modeled.outcomes_of(sources, chosen, points, degrees, steps.begin):
            found.append((outcome, seconds))
            steps.end(f"{outcome.workload}: {modeled.name_of(outcome)}", time_text(seconds))
            steps.begin("goes on")
            if shared.out is not None:
                modeled.write_outcomes(shared.out, machine, found, degrees)
    outcomes = [outcome for outcome, _ in found]
    modeled.print_designs(chosen)
    modeled.print_outcomes(outcomes)
    modeled.print_gains(outcomes)
    if shared.out is not None:
        missing = why_no_picture(modeled.PICTURE)
        if missing is None:
            modeled.draw_outcomes(shared.out / modeled.PICTURE, outcomes)
            draw_degrees(shared.out / modeled.DEGREES, degrees)
        say_results(shared.out, missing)
