"""Job, one submitted job script, and Study, which makes what jobs run on and compares what they leave."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

GRAPH = "synthetic:nodes=1000,mean_degree=10,classes=4,features=16,signal=2"
# Large enough that preprocessing takes some seconds.
LARGER_GRAPH = "synthetic:nodes=60000,mean_degree=20,classes=4,features=32,signal=2"
EPOCHS = 150
SETTINGS = f"--model sage --layers 2 --hidden 16 --method uniform --bits 8 --epochs {EPOCHS} --eval-every 20 " \
           "--checkpoint-every 10"
JOB_SECONDS = 600.0
TERM_CAUGHT = 1 << (15 - 1)
# What no log of a job that was merely interrupted shows: bash's own remarks, help texts not found, errors of ours.
NOISE = re.compile(r"No such process|^Terminated|line \d+: +\d+ Terminated|Traceback|Sorry!|command not found|unbound",
                   flags=re.MULTILINE)
# Preprocessing has no handler: the shell says what became of it.
KILLED = "Terminated"


def say(*command: object) -> str:
    """Standard output of a command that must succeed."""
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, f"{command} ended with {done.returncode}: {done.stderr}"
    return done.stdout.strip()


def urgent_job() -> None:
    """Let a short job of the partition that preempts others run on both nodes."""
    say("sbatch", "--partition", "urgent", "--nodes", 2, "--exclusive", "--output", "/dev/null", "--wrap", "true")


@dataclass
class Outcome:
    """How one disturbed job ended; `faults` are sentences, none where it ended like the undisturbed one."""

    name: str
    number: int
    moment: float
    restarts: int = 0
    seconds: float = 0.0
    faults: list[str] = field(default_factory=list)
    log: list[str] = field(default_factory=list)


class Job:
    """A job script with other settings, submitted.

    Parameters
    ----------
    script : file in jobs/
    folder : Path      takes the copy of the script and its log
    settings : dict    variable of the script: its new value, as shell code
    options : list     for sbatch
    arguments : list   for the script
    """

    def __init__(self, script: str, folder: Path, settings: dict[str, str], options: list[object],
                 arguments: tuple[object, ...] = ()):
        text = (ROOT / "jobs" / script).read_text()
        for name, value in settings.items():
            text, found = re.subn(rf"^{name}=.*", f"{name}={value}", text, flags=re.MULTILINE)
            assert found == 1, f"{script} sets {name} {found} times"
        copy, self.log = folder / script, folder / "job.log"
        copy.write_text(text)
        self._catches_signals = "trap " in text
        self._started = time.monotonic()
        self.id = say("sbatch", "--parsable", "--output", self.log, "--open-mode", "append", *options, copy, *arguments)

    def wait_for_first_line(self) -> None:
        """Return once the script's first command has run, that is, as soon as it catches TERM (or has ended)."""
        name = f"/job{int(self.id):05d}/slurm_script"
        limit = time.monotonic() + JOB_SECONDS
        while not any(self._has_begun(process, name) for process in Path("/proc").glob("[0-9]*")):
            assert time.monotonic() < limit, f"job {self.id} did not start in {JOB_SECONDS:.0f} s"
            if not self.is_queued():
                return
            time.sleep(0.02)

    def _has_begun(self, process: Path, name: str) -> bool:
        try:
            if name not in (process / "cmdline").read_text():
                return False
            caught = re.search(r"^SigCgt:\s*(\w+)", (process / "status").read_text(), flags=re.MULTILINE)
        except (OSError, UnicodeDecodeError):       # it has just ended, or is none of ours
            return False
        return not self._catches_signals or (caught is not None and bool(int(caught[1], 16) & TERM_CAUGHT))

    def signal(self, name: str) -> None:
        """Send it to the script alone; a job that has ended is left alone."""
        subprocess.run(["scancel", "--batch", "--signal", name, self.id], capture_output=True)

    def requeue(self) -> None:
        """Let Slurm queue it again; a job that has ended is left alone."""
        if self.is_queued():
            subprocess.run(["scontrol", "requeue", self.id], capture_output=True)

    def is_queued(self) -> bool:
        """Whether it waits, runs or is being ended."""
        return bool(say("squeue", "--noheader", "--jobs", self.id))

    def field(self, name: str) -> str:
        """What Slurm knows of it, such as JobState."""
        return re.search(rf"\b{name}=(\S*)", say("scontrol", "--oneliner", "show", "job", self.id))[1]

    def wait_for_end(self) -> float:
        """Seconds from the submission to the end of its last start; a job that takes too long is canceled."""
        while self.is_queued() and time.monotonic() < self._started + JOB_SECONDS:
            time.sleep(0.3)
        if self.is_queued():
            say("scancel", self.id)
        return time.monotonic() - self._started


class Study:
    """Shards, the undisturbed runs and all outcomes so far, in a folder that a later call goes on with."""

    def __init__(self, folder: Path):
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._record = folder / "outcomes.jsonl"
        lines = self._record.read_text().splitlines() if self._record.exists() else []
        self.outcomes = [Outcome(**json.loads(line)) for line in lines]
        self.shards = folder / "shards"
        if not (self.shards / "graph.h5").exists():
            say("hpcgnn", "preprocess", GRAPH, "--parts", 2, "--out", self.shards)
        self._seconds: dict[str, float] = {}

    def has(self, name: str, number: int) -> bool:
        """Whether an earlier call has done this run."""
        return any((outcome.name, outcome.number) == (name, number) for outcome in self.outcomes)

    def submit(self, kind: str, folder: Path, options: tuple[object, ...] = (),
               arguments: tuple[object, ...] = ()) -> Job:
        """A job of train.sbatch under srun or mpirun, or of preprocess.sbatch, that writes to folder/result."""
        if kind == "preprocess":
            return Job("preprocess.sbatch", folder, {
                "source_graph": LARGER_GRAPH, "parts": "2", "shards": str(folder / "result")},
                ["--cpus-per-task", 1, "--mem", 0, "--time", 10, *options])
        return Job("train.sbatch", folder, {
            "shards": str(self.shards), "run": str(folder / "result"), "settings": f"({SETTINGS})", "launcher": kind},
            ["--nodes", 2, "--ntasks-per-node", 1, "--cpus-per-task", 1, "--time", 20, *options], arguments)

    def run_undisturbed(self, kind: str) -> None:
        """Make what jobs of this kind are compared with, and measure the seconds from its first line to its end."""
        folder = self.folder / f"whole-{kind}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        job = self.submit(kind, folder)
        job.wait_for_first_line()
        started = time.monotonic()
        job.wait_for_end()
        self._seconds[kind] = time.monotonic() - started
        assert job.field("JobState") == "COMPLETED", job.log.read_text()
        print(f"{kind}: {self._seconds[kind]:.1f} s from the script's first line to its end", flush=True)

    def run(self, name: str, kind: str, number: int, share: float, disturb: Callable[[Job, float], None]) -> Outcome:
        """Submit a job, disturb it at `share` of an undisturbed one's seconds, and check what it leaves in the end."""
        whole = self.folder / f"whole-{kind}" / "result"
        outcome = Outcome(f"{name}-{kind}", number, share * self._seconds[kind])
        folder = self.folder / f"{outcome.name}-{number}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        # With the warning a minute ahead of a limit of a minute, Slurm sends it when it next looks at limits, within
        # 30 s; messages slow as over a thin link let the training last until then.
        is_limited = name == "limit"
        job = self.submit(kind, folder, ("--time", 1, "--signal", "B:USR1@60") if is_limited else (),
                          ("--set", "link_mbps=0.12") if is_limited else ())
        disturb(job, outcome.moment)
        outcome.seconds = job.wait_for_end()
        outcome.restarts = int(job.field("Restarts"))
        outcome.log = job.log.read_text().splitlines()
        outcome.faults = self._faults(job, kind, folder / "result", whole)
        if not outcome.faults:
            shutil.rmtree(folder)
        self.outcomes.append(outcome)
        with open(self._record, "a") as file:
            file.write(json.dumps(vars(outcome)) + "\n")
        return outcome

    def _faults(self, job: Job, kind: str, result: Path, whole: Path) -> list[str]:
        faults = [] if job.field("JobState") == "COMPLETED" else [f"ended as {job.field('JobState')}"]
        faults += [f"the log says {words!r}" for words in NOISE.findall(job.log.read_text())
                   if not (kind == "preprocess" and words == KILLED)]
        try:
            faults += compare_shards(result, whole) if kind == "preprocess" else compare_runs(result, whole)
        except Exception as error:      # whatever a damaged folder makes of a reader, the campaign goes on
            faults.append(f"{type(error).__name__}: {error}")
        return faults


def compare_shards(found: Path, expected: Path) -> list[str]:
    """Sentences on what differs between two folders of shards, which `hpcgnn inspect` must both accept."""
    names = sorted(path.name for path in expected.iterdir())
    if sorted(path.name for path in found.iterdir()) != names:
        return [f"{found} holds {sorted(path.name for path in found.iterdir())}, expected {names}"]
    # Each preprocessing names itself by a number drawn anew.
    mine, other = (re.sub(r"\brun \w+", "run", say("hpcgnn", "inspect", path)).replace(str(path), "")
                   for path in (found, expected))
    return [] if mine == other else [f"{found} and {expected} look different to hpcgnn inspect"]


def compare_runs(found: Path, expected: Path) -> list[str]:
    """Sentences on what differs between two finished runs: epochs, metrics but for seconds, and weights in any bit."""
    from training_setup import assert_same_bits, without_seconds

    from hpcgnn.training.run_folder import RunFolder

    if not (found / "summary.json").exists():
        return ["there is no summary.json"]
    mine, others = (RunFolder(path).read_metrics() for path in (found, expected))
    faults = []
    epochs = [record["epoch"] for record in mine]
    if epochs != list(range(1, EPOCHS + 1)):
        faults.append(f"epochs are not 1 to {EPOCHS}: {len(epochs)} lines")
    elif without_seconds(mine) != without_seconds(others):
        faults.append("metrics differ from those of the undisturbed run")
    try:
        assert_same_bits(found / "checkpoint.h5", expected / "checkpoint.h5")
    except AssertionError as error:
        faults.append(f"weights differ from those of the undisturbed run: {error}")
    return faults
