"""`hpcgnn bench device`: arguments in, one result of the GPU out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from hpcgnn.cli.lists import parse_choices, parse_list
from hpcgnn.cli.progress import shown_progress
from hpcgnn.errors import HpcgnnError

PATH, FILE = click.Path(path_type=Path), click.Path(path_type=Path, dir_okay=False)
WIDEST_BITS = 8


@click.command("device")
@click.option("--graph", "graphs", type=FILE, multiple=True, metavar="FILE.npz",
              help="Graph for SpMM and SDDMM; may be given several times.")
@click.option("--synthetic-edges", type=click.FloatRange(min=0), default=100e6, show_default=True,
              help="Also draw a graph with so many arcs, or as many as fit; 0 for none.")
@click.option("--widths", default="64,256", show_default=True, help="Columns of the rows in SpMM and SDDMM.")
@click.option("--precision", default="fp32,fp16,bf16", show_default=True, help="Of rows, but for messages.")
@click.option("--rows", type=click.IntRange(min=1), default=400_000, show_default=True,
              help="Rows of the message and of pointwise work.")
@click.option("--width", type=click.IntRange(min=1), default=256, show_default=True, help="Their columns.")
@click.option("--sizes", default="2048,4096,8192", show_default=True, help="Rows of a square adjacency of bits.")
@click.option("--dims", default="32,64", show_default=True, help="Columns of its features.")
@click.option("--bits", default="1,2,3,4", show_default=True, help="Bits of its features, 1 to 8.")
@click.option("--repeat", type=click.IntRange(min=1), default=20, show_default=True, help="Repetitions of each.")
@click.option("--seconds", type=click.FloatRange(min=0), default=0.2, show_default=True,
              help="Of a contestant, from its third repetition on.")
@click.option("--out", type=PATH, help="Folder for bench.json and table.txt, written anew after every row.")
def command(graphs: tuple[Path, ...], synthetic_edges: float, precision: str, repeat: int, seconds: float,
            out: Path | None, **flags: Any) -> None:
    """Kernels on the GPU against its ceilings, cuSPARSE, torch and the figures of QGTC's Table 3."""
    numbers = {name: parse_list(f"--{name}", flags[name], int) for name in ("widths", "sizes", "dims", "bits")}
    if max(numbers["bits"]) > WIDEST_BITS:
        raise click.UsageError(f"--bits has {max(numbers['bits'])}; expected 1 to {WIDEST_BITS}")
    precisions = parse_choices("--precision", precision, ("fp32", "fp16", "bf16"))
    from hpcgnn.bench.device_chip import Chip, check_device

    check_device()
    from hpcgnn.bench.device import DeviceBenchmark
    from hpcgnn.bench.device_timing import Device, EventTimer
    from hpcgnn.bench.timing import Effort

    chip = Chip.current()
    device = Device(chip, "cuda", EventTimer(Effort(repeat, seconds), chip.l2_bytes))
    benchmark = DeviceBenchmark(device, graphs, synthetic_edges, precisions=precisions, num_rows=flags["rows"],
                                width=flags["width"], **numbers)
    publish_as_measured(benchmark, chip, out)


def publish_as_measured(benchmark, chip, out: Path | None) -> None:
    """Measure, writing the files after every row, so that a run that is ended leaves what it has; then the table.

    Raises
    ------
    HpcgnnError      a part could not be measured; the others are published before
    """
    from hpcgnn.bench.device_result import DeviceResult
    from hpcgnn.bench.environment import available_cores
    from hpcgnn.bench.machine import describe_machine

    result = DeviceResult("device", {**describe_machine(available_cores()), **chip.describe()}, [], benchmark.failures)
    if out is not None:
        result.write(out)
    with shown_progress() as progress:
        for row in benchmark.measure():
            result.measurements.append(row)
            progress(f"{row.group}: {row.case}", None)
            if out is not None:
                result.write(out)
    if out is not None:
        result.write(out)
    click.echo(result.as_text(), nl=False)
    if benchmark.failures:
        raise HpcgnnError(f"bench device could not measure {'; '.join(benchmark.failures)}")
