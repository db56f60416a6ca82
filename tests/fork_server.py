"""Starts Python commands by a fork of a process that has torch loaded: tests of a command don't wait for imports.

`served(words)` is a command line that stands for `python words`. It starts this file, which hands arguments,
environment, folder and streams to a server, passes signals on, and ends as the forked process ends. A server starts
when it is first asked for and ends with the tests, or after five idle minutes; there is one for each environment
that libraries read while they load, and another one for `python -m pytest`, with what files of tests import. Only
libraries of others are loaded before the fork: hpcgnn and MPI start anew in every process. Processes of one server
share the seed of Python's hashes.
"""

from __future__ import annotations

import os
import resource
import signal
import socket
import sys

FOLDER = "HPCGNN_TEST_SERVERS"      # where the servers' sockets lie; unset: each command is a process of its own
# Read while Python, the loader or a library starts: each other environment of these has its own server.
READ_AT_START = ("ATEN_", "BLIS_", "CUDA_", "DNNL_", "GLIBC_", "GOMP_", "HDF5_", "KMP_", "LANG", "LC_", "LD_",
                 "MALLOC_", "MKL_", "NUMEXPR_", "OMP_", "ONEDNN_", "OPENBLAS_", "PYTHON", "PYTORCH_", "TORCH_", "TZ")
PASSED_ON = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM)
LIMITS = (resource.RLIMIT_AS, resource.RLIMIT_CORE, resource.RLIMIT_CPU, resource.RLIMIT_DATA, resource.RLIMIT_FSIZE,
          resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC, resource.RLIMIT_STACK)
LOADED = ("torch", "numpy", "scipy.sparse.csgraph", "h5py", "click", "rich.console", "rich.progress", "tqdm",
          "torch.utils.checkpoint", "asyncio", "multiprocessing.shared_memory", "unittest.mock")
LOADED_FOR_TESTS = ("pytest", "torch_geometric.nn", "torch_geometric.datasets", "torch_geometric.loader", "networkx",
                    "pandas", "scipy.optimize", "scipy.stats", "sklearn.metrics")
LENGTH_BYTES, NUM_STREAMS = 8, 3
IDLE_SECONDS, LOOK_SECONDS = 300.0, 2.0
REFUSED = -1
TESTS = "-tests"        # ends the address of a server for pytest


def served(words) -> list[str]:
    """The command line that stands for `python words`."""
    return [sys.executable, "-I", "-S", __file__, *map(str, words)]


def write_python(folder, words=()):
    """An executable file `python` of a folder, which stands for Python with these words before its own."""
    import shlex

    path = folder / "python"
    path.write_text(f'#!/bin/sh\nexec {shlex.join(served(words))} "$@"\n')
    path.chmod(0o755)
    return path


def forked_for(asker: int) -> int:
    """The process that a server has forked for one of `served`; that itself where there is none."""
    from contextlib import suppress

    for process in os.listdir("/proc"):
        with suppress(OSError), open(f"/proc/{process}/comm") as name:      # no process, or one that has ended
            if name.read() == f"of {asker}\n":
                return int(process)
    return asker


def pytest_configure(config):
    """Name the servers' folder, once for all processes that run tests, and remove it at the end, which ends them."""
    import secrets
    import shutil
    import tempfile

    if FOLDER not in os.environ and hasattr(os, "pidfd_open"):
        os.environ[FOLDER] = folder = f"{tempfile.gettempdir()}/hpcgnn-fork-{secrets.token_hex(8)}"
        config.add_cleanup(lambda: (os.environ.pop(FOLDER), shutil.rmtree(folder, ignore_errors=True)))


# The command: it starts for every process of a test, so it imports nothing but what is above.

def ask(words: list[str]) -> int:
    """The wait status of `python words` as a server's child; REFUSED where it must be a process of its own."""
    folder = os.environ.get(FOLDER)
    # By nohup, and by a shell for what it starts with &.
    ignored = [number for number in PASSED_ON if signal.getsignal(number) is signal.SIG_IGN]
    # MPICH's ranks talk to their launcher by a file that is open in them.
    if not folder or "PMI_FD" in os.environ or signal.pthread_sigmask(0, ()) or not words or (
            words[0].startswith("-") and words[0] not in ("-m", "-c")):
        return REFUSED
    mask = os.umask(0)
    os.umask(mask)
    cores = ",".join(map(str, os.sched_getaffinity(0)))
    limits = ";".join("{},{},{}".format(kind, *resource.getrlimit(kind)) for kind in LIMITS)
    request = os.fsencode("\0".join([str(os.getpid()), os.getcwd(), str(mask), cores, limits,
                                     ",".join(map(str, map(int, ignored))), str(len(words)), *words,
                                     *(f"{name}={value}" for name, value in os.environ.items())]))
    with socket.socket(socket.AF_UNIX) as server:
        try:
            server.connect(running_server(folder, is_for_tests=words[:2] == ["-m", "pytest"]))
            socket.send_fds(server, [len(request).to_bytes(LENGTH_BYTES, "big")], range(NUM_STREAMS))
            server.sendall(request)
        except OSError:      # the tests have ended, or a stream is closed
            return REFUSED
        for number in set(PASSED_ON).difference(ignored):
            signal.signal(number, lambda number, _: server.sendall(bytes([number])))
        answer = server.recv(LENGTH_BYTES)
        return int.from_bytes(answer, "big", signed=True) if answer else REFUSED


def running_server(folder: str, is_for_tests: bool) -> str:
    """The address of the server for this environment, which is started where there is none."""
    import fcntl
    import zlib

    def said(name):
        # A launcher may name a folder of libraries twice.
        return ":".join(dict.fromkeys(os.environ[name].split(":"))) if name.startswith("LD_") else os.environ[name]

    # PYTHONPATH is not among them: a forked process looks at it itself.
    names = sorted(name for name in os.environ if name.startswith(READ_AT_START) and name != "PYTHONPATH")
    address = f"{folder}/{zlib.crc32(repr([(name, said(name)) for name in names]).encode()):08x}"
    address += TESTS if is_for_tests else ""
    if not os.path.exists(address):
        os.makedirs(folder, 0o700, exist_ok=True)
        with open(f"{folder}/lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not os.path.exists(address):
                start_server(address)
    return address


def start_server(address: str) -> None:
    """Start a server and return when it listens."""
    import subprocess

    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    with subprocess.Popen([sys.executable, __file__, "--serve", address], stdin=subprocess.DEVNULL, cwd="/",
                          stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment,
                          start_new_session=True) as starter:
        starter.stdout.read()


def end_as(status: int) -> None:
    """End with the status, or by the signal, of another process."""
    if os.WIFSIGNALED(status):
        if os.WTERMSIG(status) != signal.SIGKILL:
            signal.signal(os.WTERMSIG(status), signal.SIG_DFL)
        os.kill(os.getpid(), os.WTERMSIG(status))
    os._exit(os.waitstatus_to_exitcode(status))


# The server.

class Wanted:
    """What a forked process has to become."""

    def __init__(self, request: str, streams: list[int]):
        self.asker, self.folder, mask, cores, limits, ignored, num_words, *rest = request.split("\0")
        self.ignored = [int(number) for number in ignored.split(",") if number]
        self.streams, self.mask, self.cores = streams, int(mask), [int(core) for core in cores.split(",")]
        self.limits = [[int(part) for part in limit.split(",")] for limit in limits.split(";")]
        self.words = rest[:int(num_words)]
        self.environment = dict(variable.split("=", 1) for variable in rest[int(num_words):])


class Server:
    """Forks a process for each request, passes signals on to it and sends its status back."""

    def __init__(self, address: str):
        import selectors

        self._address = address
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(address)
        self._listener.listen(64)
        self._children: dict[socket.socket, int] = {}
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)

    def serve(self) -> Wanted | None:
        """Return, in a forked process, what it has to do; in the server, None at its end."""
        from time import monotonic

        worked = monotonic()
        while os.path.exists(self._address):
            for key, _ in self._selector.select(LOOK_SECONDS):
                forked = key.data(key.fileobj)
                if forked:
                    return forked
            if self._children:
                worked = monotonic()
            elif monotonic() > worked + IDLE_SECONDS:
                os.unlink(self._address)
        for child in self._children.values():
            kill_group(child)
        return None

    def _accept(self, _) -> Wanted | None:
        connection, _ = self._listener.accept()
        length, streams, _, _ = socket.recv_fds(connection, LENGTH_BYTES, NUM_STREAMS)
        request = b""
        while len(request) < int.from_bytes(length, "big"):
            received = connection.recv(1 << 16)
            if not received:        # who asked was killed
                break
            request += received
        else:
            wanted = Wanted(os.fsdecode(request), streams)
            child = os.fork()
            if child == 0:
                self._selector.close()
                for other in (self._listener, connection, *self._children):
                    other.close()
                return wanted
            self._children[connection] = child
            self._selector.register(connection, 1, self._pass_on)
            self._selector.register(os.pidfd_open(child), 1, lambda ended: self._report(ended, connection))
        for stream in streams:
            os.close(stream)
        return None

    def _pass_on(self, connection: socket.socket) -> None:
        if connection not in self._children:     # ended a moment ago
            return
        number = connection.recv(1)
        if number:
            os.kill(self._children[connection], number[0])
        else:
            self._selector.unregister(connection)
            kill_group(self._children[connection])

    def _report(self, ended: int, connection: socket.socket) -> None:
        _, status = os.waitpid(self._children.pop(connection), 0)
        self._selector.unregister(ended)
        os.close(ended)
        if connection in self._selector.get_map():
            self._selector.unregister(connection)
        with connection:
            try:
                connection.sendall(status.to_bytes(LENGTH_BYTES, "big", signed=True))
            except OSError:     # who asked was killed
                return


def kill_group(child: int) -> None:
    """Kill a forked process with those that it has started itself."""
    try:
        os.killpg(child, signal.SIGKILL)
    except ProcessLookupError:      # it has no group yet
        os.kill(child, signal.SIGKILL)


def become(wanted: Wanted) -> None:
    """Run `python words` in this process, as if it had just been started."""
    import io
    import runpy

    os.setsid()
    with open("/proc/self/comm", "w") as name:      # by which `forked_for` finds it
        name.write(f"of {wanted.asker}")
    for number, stream in enumerate(wanted.streams):
        os.dup2(stream, number)
        os.close(stream)
    for number in PASSED_ON:
        default = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
        signal.signal(number, signal.SIG_IGN if number in wanted.ignored else default)
    os.environ.clear()
    os.environ.update(wanted.environment)
    os.chdir(wanted.folder)
    os.umask(wanted.mask)
    os.sched_setaffinity(0, wanted.cores)
    for kind, *limit in wanted.limits:
        resource.setrlimit(kind, tuple(limit))
    sys.stdin = sys.__stdin__ = os.fdopen(0, closefd=False)
    for number, name, errors in ((1, "stdout", "strict"), (2, "stderr", "backslashreplace")):
        stream = io.TextIOWrapper(os.fdopen(number, "wb", closefd=False), errors=errors,
                                  line_buffering=number == 2 or os.isatty(number))
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    kind, rest = (wanted.words[0], wanted.words[1:]) if wanted.words[0] in ("-m", "-c") else ("", wanted.words)
    first = {"-c": "", "-m": wanted.folder}.get(kind) if kind else os.path.dirname(os.path.realpath(rest[0]))
    sys.path[:0] = [first, *filter(None, wanted.environment.get("PYTHONPATH", "").split(os.pathsep))]
    sys.argv = [kind or rest[0], *rest[1:]]
    if kind == "-m":
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif kind == "-c":
        exec(compile(rest[0], "<string>", "exec"), {"__name__": "__main__", "__builtins__": __builtins__})
    else:
        runpy.run_path(rest[0], run_name="__main__")


def run_server(address: str) -> Wanted | None:
    """Load libraries, and tell who started this that it listens before: requests wait until they are loaded."""
    import gc
    from contextlib import suppress
    from importlib import import_module

    del sys.path[0]     # the folder of this file
    server = Server(address)
    quiet = os.open(os.devnull, os.O_RDWR)
    os.dup2(quiet, 1)
    os.close(quiet)
    for name in LOADED:
        import_module(name)
    for name in LOADED_FOR_TESTS if address.endswith(TESTS) else ():
        with suppress(ImportError):     # some tests are skipped without it
            import_module(name)
    gc.freeze()
    return server.serve()


def main() -> None:
    """See the module."""
    if sys.argv[1:2] == ["--serve"]:
        if os.fork() == 0:       # so that nobody has to wait for the server's end
            wanted = run_server(sys.argv[2])
            if wanted:
                become(wanted)
        return
    status = ask(sys.argv[1:])
    if status == REFUSED:
        os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
    end_as(status)


if __name__ == "__main__":
    main()
