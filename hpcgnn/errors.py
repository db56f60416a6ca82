"""Errors that a user can cause or must act on. Each carries one sentence that says what was found and what to do.

Nothing here imports anything; every other room may raise these.
"""


class HpcgnnError(Exception):
    """Base of all errors that are reported to the user as one sentence, without a traceback."""

    exit_code = 1


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
