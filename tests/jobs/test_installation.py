"""jobs/install.sh with stand-ins for Python, pip and uv: who installs, which torch and extras, and what is refused."""

import os
import re
import subprocess
import time
from pathlib import Path

import pytest

from hpcgnn.ops.simd import processor_level

ROOT = Path(__file__).parents[2]
TOOLS = ("bash", "cat", "cut", "date", "dirname", "env", "find", "flock", "grep", "head", "kill", "ls", "mkdir",
         "rm", "sed", "sha256sum", "sleep", "sort", "tail", "timeout", "tr", "uname", "wc", "xargs")
PRELUDE = r"""
set -euo pipefail
eval "$(sed '/^hpcgnn_activate ||/d; /^HPCGNN_ROOT=/d' "$HPCGNN_ROOT/jobs/env.sh")"
hpcgnn_sees_gpu_here=$(declare -f hpcgnn_sees_gpu)
hpcgnn_sees_gpu() { false; }
"""
# The environment's Python, with its pip: it writes down what it is called with.
PYTHON = r"""
printf 'python %s\n' "$*" >>"$LOG"
case "$*" in
    *"pip config list") printf '%s\n' "${PIP_SETTINGS:-}" ;;
    *"index versions torch"*--no-index) echo "${TORCH_IN_FOLDERS:-}" ;;
    *"index versions torch"*) echo "${TORCH_ON_INDEX:-}" ;;
    "-c import torch") [[ -n ${TORCH_IS_THERE:-} ]] ;;
    *'version("torch")'*) echo torch==2.9.9 ;;
    *'get_paths()["include"]'*) echo "$HEADERS" ;;
    "setup.py "*) eval "${BUILD:-}" ;;
    *"pip --disable-pip-version-check install"*)
        until [[ -z ${WAIT_FOR:-} || $* != *--editable* || -s $WAIT_FOR ]]; do sleep 0.02; done
        [[ -z ${PIP_FAILS:-} || $* != *$PIP_FAILS* ]] ;;
esac
"""
UV = r"""
printf 'uv %s\n' "$*" >>"$LOG"
env | grep '^UV_' | sort >"$LOG.uv"
[[ -z ${UV_FAILS:-} || $* != *$UV_FAILS* ]]
"""


def write_program(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)    # a link leads to the system's own program
    path.write_text("#!/bin/bash\n" + text)
    path.chmod(0o755)


class Machine:
    """A checkout without kernels, an environment of stand-ins, and a PATH with little on it."""

    def __init__(self, folder):
        self.folder, self.venv, self.bin = folder, folder / "venv", folder / "bin"
        self.root, self.log = folder / "checkout", folder / "log"
        for name in TOOLS:
            (self.bin / name).parent.mkdir(exist_ok=True)
            (self.bin / name).symlink_to(next(p for f in ("/usr/bin", "/bin") if (p := Path(f, name)).exists()))
        write_program(self.bin / "cc", "")
        write_program(self.venv / "bin/python", PYTHON)
        (folder / "headers").mkdir()
        (folder / "headers/Python.h").touch()
        (self.root / "ext").mkdir(parents=True)
        (self.root / "jobs").symlink_to(ROOT / "jobs")
        for name in ("pyproject.toml", "setup.py"):
            (self.root / name).write_text((ROOT / name).read_text())
        for name in ("codec", "_shared"):
            (self.root / "hpcgnn/_ext").mkdir(parents=True, exist_ok=True)
            (self.root / f"hpcgnn/_ext/{name}.cpython-311.so").touch()
        (self.root / "ext/codec.pyx").touch()

    def add_uv(self):
        write_program(self.bin / "uv", UV)

    def run(self, code="hpcgnn_install_once", **environment):
        self.log.write_text("")
        return subprocess.run(["bash", "-c", PRELUDE + code], capture_output=True, text=True, timeout=60, cwd="/", env={
            "PATH": str(self.bin), "HPCGNN_ROOT": str(self.root), "HPCGNN_VENV": str(self.venv), "LOG": str(self.log),
            "HEADERS": str(self.folder / "headers"), **environment})

    def installed(self, program):
        """What pip, or uv, was asked to install, one call an entry."""
        before = {"pip": r"python -m pip --disable-pip-version-check install ",
                  "uv": rf"uv pip install --python {re.escape(str(self.venv))}/bin/python "}[program]
        return [line for line in re.findall(rf"^{before}(.*)$", self.log.read_text(), flags=re.MULTILINE)]

    @property
    def calls(self):
        return self.log.read_text()


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


def packages(machine, extras="report"):
    return f"--constraint {machine.venv}/constraints.txt --no-build-isolation --editable {machine.root}[{extras}]"


BUILD_TOOLS = "setuptools>=77 cython>=3.2.1"


def test_uv_on_path_installs_all_but_nothing_is_asked_of_pip(machine):
    machine.add_uv()
    done = machine.run(TORCH_IN_FOLDERS="torch (2.13.0+cpu)")
    assert done.returncode == 0, done.stderr
    assert machine.installed("uv") == [BUILD_TOOLS, "torch==2.13.0+cpu", packages(machine)]
    assert machine.installed("pip") == []


def test_pip_can_be_forced_where_there_is_uv(machine):
    machine.add_uv()
    assert machine.run(HPCGNN_INSTALLER="pip", TORCH_IN_FOLDERS="torch (2.13.0+cpu)").returncode == 0
    assert machine.installed("uv") == []
    assert machine.installed("pip") == [f"--no-compile {what}" for what in (
        BUILD_TOOLS, "torch==2.13.0+cpu", packages(machine))]


def test_without_uv_pip_installs_it_and_uv_the_rest(machine):
    write_program(machine.folder / "uv", UV)
    add = f'*"--only-binary :all: uv") /bin/cp "{machine.folder}/uv" "{machine.venv}/bin/uv" ;;'
    write_program(machine.venv / "bin/python", PYTHON.replace('case "$*" in\n', f'case "$*" in\n{add}\n'))
    assert machine.run().returncode == 0
    assert machine.installed("pip") == ["--retries 0 --only-binary :all: uv"]
    assert machine.installed("uv")[0] == BUILD_TOOLS


def test_where_uv_cannot_be_installed_pip_goes_on_and_says_so(machine):
    done = machine.run(PIP_FAILS=":all: uv")
    assert done.returncode == 0
    assert done.stderr.count("there is no uv and pip can't install it, so pip installs all") == 1
    assert machine.installed("pip")[1] == f"--no-compile {BUILD_TOOLS}"


def test_a_uv_that_fails_is_replaced_by_pip_and_a_forced_one_is_not(machine):
    machine.add_uv()
    done = machine.run(UV_FAILS="--editable")
    assert done.returncode == 0
    assert machine.installed("pip") == [f"--no-compile {packages(machine)}"]
    assert "so pip goes on" in done.stderr
    done = machine.run(UV_FAILS="--editable", HPCGNN_INSTALLER="uv", TORCH_IS_THERE="1", HPCGNN_EXTRAS="test")
    assert done.returncode == 1
    assert machine.installed("pip") == []
    assert "hpcgnn: uv pip install --constraint" in done.stderr


@pytest.mark.parametrize("settings, message", [
    ({"HPCGNN_INSTALLER": "conda"}, "HPCGNN_INSTALLER is 'conda'; expected auto, pip or uv"),
    ({"HPCGNN_INSTALLER": "uv", "PIP_FAILS": ":all: uv"},
     "HPCGNN_INSTALLER=uv, but there is no uv and pip can't install it; put it on PATH or unset it"),
    ({"HPCGNN_EXTRAS": "report,graphs"},
     "HPCGNN_EXTRAS has 'graphs'; expected some of cuda12, cuda13, docs, export, mlflow, mpi, mpich, ogb, report, "
     "tables, tensorboard, test, toolkit, wandb"),
    ({"CC": "ccache gcc-99"}, "there is no C compiler (gcc-99); install one"),
])
def test_a_choice_that_cannot_be_met_is_one_sentence(machine, settings, message):
    write_program(machine.bin / "ccache", "")
    done = machine.run(**settings)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(f"hpcgnn: {message}")
    assert not (machine.venv / "hpcgnn.stamp").exists()


@pytest.mark.parametrize("compiler", ["ccache gcc", "gcc -m64 -pipe", ""])
def test_a_compiler_may_have_a_launcher_and_options(machine, compiler):
    for name in ("ccache", "gcc"):
        write_program(machine.bin / name, "")
    assert machine.run('hpcgnn_check_compiler "$HPCGNN_VENV/bin/python"', CC=compiler).returncode == 0


def test_uv_asks_where_pip_is_configured_to(machine):
    machine.add_uv()
    settings = ("global.index-url='https://old/simple'\ninstall.index-url='https://site/simple'\n"
                "global.find-links='/wheels /more'\nglobal.extra-index-url='https://a/simple\\nhttps://b/simple'")
    machine.run(PIP_SETTINGS=settings, UV_FIND_LINKS="/mine")
    assert (machine.folder / "log.uv").read_text().splitlines() == [
        "UV_DEFAULT_INDEX=https://site/simple", "UV_FIND_LINKS=/mine", "UV_INDEX=https://a/simple https://b/simple",
        "UV_INDEX_STRATEGY=unsafe-best-match"]
    machine.run(PIP_SETTINGS=settings, HPCGNN_EXTRAS="test")
    assert "UV_FIND_LINKS=/wheels,/more\n" in (machine.folder / "log.uv").read_text()


INDEX = "https://download.pytorch.org/whl/cpu"
CHOICES = {
    "a GPU": ('hpcgnn_sees_gpu() { true; }', {}, "torch==2.13.0", "since an NVIDIA GPU is seen"),
    "folders": ("", {"TORCH_IN_FOLDERS": "torch (2.13.0+cpu)", "TORCH_ON_INDEX": "2.13.0+cpu"}, "torch==2.13.0+cpu",
                "from the folders that pip is told of, since no NVIDIA GPU is seen here"),
    "PyTorch's index": ("", {"TORCH_ON_INDEX": "Available versions: 2.14.0+cpu, 2.13.0+cpu, 2.13.0"},
                        f"torch==2.13.0+cpu --extra-index-url {INDEX}", "since no NVIDIA GPU is seen here"),
    "no answer": ("", {"TORCH_ON_INDEX": "Available versions: 2.13.0"}, "torch==2.13.0",
                  f"which may bring gigabytes of CUDA: no NVIDIA GPU is seen here, but {INDEX} has no answer"),
    "another system": ("uname() { echo Darwin arm64; }", {}, "torch==2.13.0",
                       "since there is no other for Darwin arm64"),
}


@pytest.mark.covering(1)
@pytest.mark.parametrize("name", CHOICES)
@pytest.mark.parametrize("installer", ["pip", "uv"])
def test_the_wheel_for_cpus_is_taken_unless_a_gpu_is_seen(machine, name, installer):
    machine.add_uv()
    code, settings, arguments, reason = CHOICES[name]
    done = machine.run(f"{code}\nhpcgnn_install_once", HPCGNN_INSTALLER=installer, **settings)
    assert done.returncode == 0
    assert machine.installed(installer)[1].removeprefix("--no-compile ") == arguments
    assert (f"hpcgnn: takes {arguments.split()[0]}, {reason}; for another, as for nodes with other devices, set "
            f"HPCGNN_TORCH and remove {machine.venv}\n") in done.stderr


def test_the_network_is_not_asked_for_what_lies_in_a_folder_and_one_try_is_short(machine):
    machine.run(TORCH_IN_FOLDERS="torch (2.13.0+cpu)")
    assert INDEX not in machine.calls
    machine.run(HPCGNN_EXTRAS="test")
    assert f"index versions torch --timeout 3 --retries 0 --extra-index-url {INDEX}\n" in machine.calls


def test_an_index_that_never_answers_costs_no_more_than_its_limit(machine):
    write_program(machine.bin / "timeout", '[[ $1 == 15 ]] || exit 9\necho "timeout $*" >>"$LOG"\nexit 124\n')
    done = machine.run()
    assert done.returncode == 0
    assert f"{INDEX} has no answer" in done.stderr
    assert "index versions torch" in machine.calls


def test_what_hpcgnn_torch_says_goes_to_pip_as_it_is(machine):
    machine.add_uv()
    wanted = "torch==2.12 --pre --index-url https://site/simple"
    done = machine.run("hpcgnn_sees_gpu() { true; }\nhpcgnn_install_once", HPCGNN_TORCH=wanted)
    assert machine.installed("pip") == [f"--no-compile {wanted}"]
    assert "takes torch==2.12, as HPCGNN_TORCH says" in done.stderr
    assert "index versions" not in machine.calls


@pytest.mark.parametrize("installer", ["pip", "uv"])
def test_a_torch_that_is_there_stays(machine, installer):
    machine.add_uv()
    done = machine.run(TORCH_IS_THERE="1", HPCGNN_TORCH="torch==1.0", HPCGNN_INSTALLER=installer)
    assert done.returncode == 0
    assert [what.removeprefix("--no-compile ") for what in machine.installed(installer)] == [
        BUILD_TOOLS, packages(machine)]
    assert (machine.venv / "constraints.txt").read_text() == "torch==2.9.9\n"


def test_a_gpu_is_seen_by_the_answer_of_nvidia_smi(machine):
    if Path("/proc/driver/nvidia/version").exists() or list(Path("/dev").glob("nvidia[0-9]*")):
        pytest.skip("this machine has an NVIDIA GPU, which is seen without nvidia-smi")
    ask = 'eval "$hpcgnn_sees_gpu_here"; hpcgnn_sees_gpu && echo seen || echo none'
    assert machine.run(ask).stdout == "none\n"
    write_program(machine.bin / "nvidia-smi", "exit 6")      # a driver without devices
    assert machine.run(ask).stdout == "none\n"
    write_program(machine.bin / "nvidia-smi", "")
    assert machine.run(ask).stdout == "seen\n"


def test_extras_are_added_and_none_is_taken_away(machine):
    machine.add_uv()
    assert machine.run(HPCGNN_EXTRAS="ogb").returncode == 0
    assert machine.installed("uv")[-1] == packages(machine, "ogb")
    assert machine.run(HPCGNN_EXTRAS="test report,test").returncode == 0
    assert machine.installed("uv")[-1] == packages(machine, "ogb,report,test")
    assert machine.run("hpcgnn_extras | cat").stdout == "ogb\nreport\ntest\n"


def test_byte_code_is_made_once_of_what_is_used_even_where_it_is_forbidden(machine):
    write_program(machine.venv / "bin/python",
                  PYTHON + '[[ $* != "-c import "* ]] || echo "${PYTHONDONTWRITEBYTECODE:-may write}" >>"$LOG"\n')
    machine.run(PYTHONDONTWRITEBYTECODE="1", HPCGNN_EXTRAS="test")
    (modules, may_write), = re.findall(r"^python -c import (click.*)\n(.*)$", machine.calls, flags=re.MULTILINE)
    assert may_write == "may write"
    assert "torch_geometric" in modules and "matplotlib" not in modules


def test_byte_code_is_left_to_python_where_it_may_write_it(machine):
    assert machine.run().returncode == 0
    assert "-c import click" not in machine.calls


def test_what_cannot_be_imported_ends_the_installation(machine):
    write_program(machine.venv / "bin/python", PYTHON + '[[ $* != "-c import click"* ]] || exit 1\n')
    done = machine.run(PYTHONDONTWRITEBYTECODE="1")
    assert done.returncode == 1
    assert "hpcgnn: what was installed can't be imported" in done.stderr
    assert not (machine.venv / "hpcgnn.stamp").exists()


def test_what_is_installed_is_installed_without_pip_uv_or_network(machine):
    machine.add_uv()
    for extras, is_new in (("report,test", True), ("test", False), ("ogb", True)):
        assert machine.run(HPCGNN_EXTRAS=extras).returncode == 0
        assert bool(machine.installed("uv")) == ("-m pip" in machine.calls) == is_new


BEST = "all" if processor_level() == "portable" else processor_level()


@pytest.mark.parametrize("variables, stamp, levels", [
    ({}, "", BEST), ({}, f"levels {BEST}", BEST), ({"HPCGNN_EXTRAS": "report,test"}, "", "all"),
    ({}, "extra test", "all"), ({}, "levels portable", "all"), ({}, "levels all", "all"),
    ({"HPCGNN_LEVELS": "avx2"}, "extra test", "avx2"), ({"HPCGNN_LEVELS": "all"}, f"levels {BEST}", "all")])
def test_kernels_are_built_for_this_machine_and_all_for_tests_or_other_machines(machine, variables, stamp, levels):
    (machine.venv / "hpcgnn.stamp").write_text(stamp + "\n")
    assert machine.run("hpcgnn_levels", **variables).stdout == f"{levels}\n"
    if not stamp:
        (machine.venv / "hpcgnn.stamp").unlink()
        machine.run(BUILD='printf "%s" "$HPCGNN_LEVELS" >"$LOG.levels"', **variables)
        assert Path(f"{machine.log}.levels").read_text() == levels
        machine.run("hpcgnn_is_installed && echo yes >&2 || touch $LOG.again", **variables)
        assert not Path(f"{machine.log}.again").exists()


def test_changed_sources_are_installed_again_where_there_is_an_installer(machine):
    machine.run()
    (machine.root / "ext/codec.pyx").write_text("changed")
    done = machine.run("hpcgnn_timed() { :; }; hpcgnn_activate", HPCGNN_INSTALLER="none")
    assert done.returncode == 0, done.stderr
    assert not machine.installed("pip")
    machine.run()
    assert machine.installed("pip")


def test_settings_of_tools_that_only_read_the_sources_install_nothing_again(machine):
    machine.run()
    for tool, is_new in (("[tool.ruff]\nline-length = 99\n[tool.mypy]\nstrict = true\n"
                          "[[tool.mypy.overrides]]\nmodule = 'x'\n", False),
                         ("[tool.setuptools]\nzip-safe = false\n", True)):
        with open(machine.root / "pyproject.toml", "a") as file:
            file.write(tool)
        machine.run()
        assert bool(machine.installed("pip")) == is_new


def test_kernels_that_cannot_be_built_end_the_installation_with_what_the_compiler_said(machine):
    done = machine.run(BUILD="echo codec.c:3: error; exit 1")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-2:] == [
        "codec.c:3: error", f"hpcgnn: the kernels can't be built; the whole log is in {machine.venv}/kernels.log"]
    assert not (machine.venv / "hpcgnn.stamp").exists()


def ends_soon(state):
    """Whether a process that was sent a signal is gone, or waits for its parent only, within ten seconds."""
    for _ in range(200):
        try:
            if state.read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.05)
    return False


def test_packages_that_cannot_be_installed_end_the_compilers_too(machine):
    done = machine.run(BUILD='echo $$ >"$LOG.pid"; sleep 50 & wait', PIP_FAILS="--editable", HPCGNN_INSTALLER="pip",
                       WAIT_FOR=f"{machine.log}.pid")
    assert done.returncode == 1
    assert f"hpcgnn: pip install --no-compile {packages(machine)} failed" in done.stderr
    process = Path(f"{machine.log}.pid").read_text().strip()
    assert ends_soon(Path(f"/proc/{process}/stat"))


def test_kernels_are_made_again_only_with_other_flags(machine):
    old = machine.root / "build/cython/codec.c"
    build = 'hpcgnn_build_kernels >/dev/null; [[ -e build/cython/codec.c ]] && echo kept || echo removed'
    for flags, answer in (({}, "removed"), ({}, "kept"), ({"CFLAGS": "-O0"}, "removed"),
                          ({"CFLAGS": "-O0", "HPCGNN_BOUNDS_CHECK": "1"}, "removed")):
        old.parent.mkdir(parents=True, exist_ok=True)
        old.touch()
        assert machine.run(build, **flags).stdout == f"{answer}\n"


def test_the_seconds_of_each_step_are_noted_where_they_are_asked_for(machine):
    steps = machine.folder / "steps"
    machine.run("hpcgnn_install_once; hpcgnn_timed 'a nap' sleep 0.3; ! hpcgnn_timed 'no step' false",
                HPCGNN_STEPS=str(steps))
    seconds = dict(line.split("\t") for line in steps.read_text().splitlines())
    assert list(seconds)[-1] == "a nap" and float(seconds["a nap"]) >= 0.3
    assert set(seconds) == {"environment", "build tools", "kernels, in the background", "torch", "packages",
                            "byte code", "rest of the kernels", "a nap"}


def test_the_build_tools_are_those_of_pyproject():
    requires = re.search(r"^requires = \[(.*)\]", (ROOT / "pyproject.toml").read_text(), flags=re.MULTILINE)[1]
    assert set(re.findall(r'"(.*?)"', requires)) == set(BUILD_TOOLS.split())


@pytest.mark.parametrize("script", ["jobs/test.sh", "jobs/campaign.sh", "jobs/sanitize.sh", "tests/slurm/run.sh"])
def test_what_runs_tests_asks_for_their_packages_beside_the_users_own(script):
    before = (ROOT / script).read_text().partition("\nsource ")[0].splitlines()
    line, = [line for line in before if line.startswith("HPCGNN_EXTRAS=")]
    done = subprocess.run(["bash", "-c", f'{line}; echo "$HPCGNN_EXTRAS"'], capture_output=True, text=True,
                          env={"PATH": os.environ["PATH"], "HPCGNN_EXTRAS": "ogb"})
    assert done.stdout == "ogb,test\n"
