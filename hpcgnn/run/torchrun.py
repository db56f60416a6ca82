"""Ranks started by torchrun, connected to MPI by a small server of MPICH's start-up protocol (PMI-1).

torchrun tells each process its rank and nothing more. MPICH-like libraries ask for the rest in lines of text over a
file descriptor (PMI_FD). So rank 0 starts a server process, and each rank hands MPI a connection to it. Example of a
dialog: "cmd=get kvsname=K key=P0-businesscard" is answered by "cmd=get_result rc=0 msg=success value=...".
"""

from __future__ import annotations

import hashlib
import os
import secrets
import selectors
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hpcgnn.errors import TrainingError
from hpcgnn.run.process import is_by_torchrun

NUM_PORTS = 16               # ports after torchrun's own; the server takes the first that is free
PATIENCE_SECONDS = 120.0     # time for all ranks to connect
GREETING = "hpcgnn-pmi"
MAXIMA = "kvsname_max=256 keylen_max=256 vallen_max=4096"


class Server:
    """Answers the requests of all ranks, one line each, until the last rank hangs up.

    `token` is a greeting that keeps ranks of two trainings apart; `mapping` says which ranks share a node, in PMI's
    notation ("" leaves it to MPI).
    """

    def __init__(self, listener: socket.socket, token: str, num_ranks: int, mapping: str):
        self._listener, self._token, self._num_ranks = listener, token, num_ranks
        # MPICH names the memory that ranks of a node share after this name, so the name must differ between runs.
        self._name = f"hpcgnn_{secrets.token_hex(8)}"
        self._values = {"PMI_process_mapping": mapping} if mapping else {}
        self._waiting: list[socket.socket] = []
        self._unread: dict[socket.socket, bytes] = {}
        self._joined: set[str] = set()
        self._members: set[socket.socket] = set()

    def serve(self) -> None:
        """Serve until all ranks have come and gone, or PATIENCE_SECONDS pass before all have come."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ)
            end = time.monotonic() + PATIENCE_SECONDS
            # Wait until `end` for all ranks to join; then without limit, until each hangs up.
            while len(self._joined) < self._num_ranks or self._unread:
                is_complete = len(self._joined) == self._num_ranks
                ready = selector.select(None if is_complete else max(0.0, end - time.monotonic()))
                if not ready:
                    return
                for key, _ in ready:
                    known: Any = key.fileobj
                    if known is self._listener:
                        connection, _ = self._listener.accept()
                        self._unread[connection] = b""
                        selector.register(connection, selectors.EVENT_READ)
                    elif not self._take(known):
                        selector.unregister(known)
                        self._unread.pop(known)
                        self._members.discard(known)
                        known.close()

    def _take(self, connection: socket.socket) -> bool:
        try:
            found = connection.recv(1 << 16)
            # The last piece is a line that has not fully arrived.
            *lines, self._unread[connection] = (self._unread[connection] + found).split(b"\n")
            for line in lines:
                self._answer(connection, line.decode(errors="replace"))
        except OSError:
            return False
        return bool(found)

    def _answer(self, connection: socket.socket, line: str) -> None:
        words = dict(word.split("=", 1) for word in line.split() if "=" in word)
        command = words.get("cmd", "")
        if line.startswith(GREETING):
            self._greet(connection, line.split())
        elif connection not in self._members:
            _say(connection, f"{GREETING} refused")
        elif command == "barrier_in":
            self._waiting.append(connection)
            if len(self._waiting) == self._num_ranks:
                for one in self._waiting:
                    _say(one, "cmd=barrier_out rc=0")
                self._waiting.clear()
        elif command == "put":
            self._values[words.get("key", "")] = line.split("value=", 1)[-1]
            _say(connection, "cmd=put_result rc=0 msg=success")
        elif command == "get":
            value = self._values.get(words.get("key", ""))
            _say(connection, "cmd=get_result rc=-1 msg=key_not_found value=unknown" if value is None
                 else f"cmd=get_result rc=0 msg=success value={value}")
        else:
            _say(connection, self._fixed_answers().get(command, f"cmd={command} rc=-1 msg=not_supported"))

    def _fixed_answers(self) -> dict[str, str]:
        return {"init": "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0",
                "get_maxes": f"cmd=maxes {MAXIMA} rc=0",
                "get_appnum": "cmd=appnum appnum=0 rc=0",
                "get_my_kvsname": f"cmd=my_kvsname kvsname={self._name} rc=0",
                "get_universe_size": f"cmd=universe_size size={self._num_ranks} rc=0",
                "finalize": "cmd=finalize_ack rc=0"}

    def _greet(self, connection: socket.socket, words: list[str]) -> None:
        is_mine = len(words) == 3 and words[1] == self._token and words[2] not in self._joined
        if is_mine:
            self._joined.add(words[2])
            self._members.add(connection)
        _say(connection, f"{GREETING} {'welcome' if is_mine else 'refused'}")


def _say(connection: socket.socket, line: str) -> None:
    connection.sendall(f"{line}\n".encode())


@contextmanager
def joined_by_mpi() -> Iterator[None]:
    """Collective under torchrun: within the block, an MPICH-like MPI initializes with all of torchrun's ranks.

    Any other MPI finds each rank alone, which `launch.check_joined` refuses. Without torchrun nothing happens. Raises
    TrainingError if rank 0 has no free port, or is not found within two minutes.
    """
    if not is_by_torchrun() or int(os.environ["WORLD_SIZE"]) == 1 or "mpi4py.MPI" in sys.modules:
        yield
        return
    rank, num_ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if rank == 0:
        start_server(num_ranks)
    connection = connect(os.environ["MASTER_ADDR"], rank)
    # MPI hangs up when the process ends; no child process may keep the connection.
    variables = {"PMI_FD": str(connection.detach()), "PMI_RANK": str(rank), "PMI_SIZE": str(num_ranks)}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables:
            del os.environ[name]


def token() -> str:
    words = [os.environ.get(name, "") for name in (
        "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE")]
    return hashlib.sha256(" ".join(words).encode()).hexdigest()


def ports() -> range:
    """Return the ports that the server may take, next to torchrun's."""
    first = int(os.environ["MASTER_PORT"])
    return range(first - NUM_PORTS, first) if first + NUM_PORTS > 65535 else range(first + 1, first + 1 + NUM_PORTS)


def process_mapping(num_ranks: int) -> str:
    """Return which ranks share a node, in PMI's notation; "" if nodes have different numbers of ranks."""
    of_node, nodes = (int(os.environ.get(name, 0)) for name in ("LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE"))
    return f"(vector,(0,{nodes},{of_node}))" if of_node * nodes == num_ranks else ""


def start_server(num_ranks: int) -> None:
    """Start the server in a separate process, since MPI holds the interpreter while it initializes.

    Raises TrainingError if no port is free.
    """
    listener = socket.socket(socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET)
    if listener.family == socket.AF_INET6:
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    for port in ports():
        try:
            listener.bind(("", port))
            break
        except OSError:
            continue
    else:
        raise TrainingError(f"none of the ports {ports().start} to {ports().stop - 1} next to torchrun's is free, so "
                            "the ranks can't find each other; choose another --master-port")
    listener.listen(num_ranks)
    program = f"from hpcgnn.run.torchrun import serve_from; serve_from({listener.fileno()})"
    subprocess.Popen([sys.executable, "-c", program], pass_fds=[listener.fileno()], stdin=subprocess.DEVNULL,
                     stdout=subprocess.DEVNULL, start_new_session=True,
                     env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))})
    listener.close()


def serve_from(descriptor: int) -> None:
    """Serve on an inherited listening socket; the program that `start_server` runs."""
    num_ranks = int(os.environ["WORLD_SIZE"])
    with socket.socket(fileno=descriptor) as listener:
        Server(listener, token(), num_ranks, process_mapping(num_ranks)).serve()


def connect(host: str, rank: int) -> socket.socket:
    """Return a connection to the server of this training; TrainingError if none is found in time."""
    end = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < end:
        for port in ports():
            connection = _greeted(host, port, rank)
            if connection is not None:
                return connection
        time.sleep(0.1)
    raise TrainingError(f"rank {rank} found no rank 0 at {host}, ports {ports().start} to {ports().stop - 1}, which "
                        "lie next to torchrun's; open them between the nodes, or start the ranks by mpirun")


def _greeted(host: str, port: int, rank: int) -> socket.socket | None:
    try:
        connection = socket.create_connection((host, port), timeout=5)
    except OSError:
        return None
    try:
        _say(connection, f"{GREETING} {token()} {rank}")
        answer = b""
        while not answer.endswith(b"\n") and (found := connection.recv(64)):
            answer += found
        if answer == f"{GREETING} welcome\n".encode():
            connection.settimeout(None)
            return connection
    except OSError:
        pass
    connection.close()
    return None
