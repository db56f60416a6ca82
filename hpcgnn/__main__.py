"""The `hpcgnn` command: stop signals are held before anything else is imported, then the command line runs."""

from __future__ import annotations

import sys

from hpcgnn.run.signals import STOP_REQUEST


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit: 0 done, 1 failed, 2 wrong usage, 75 interrupted with everything written."""
    words = sys.argv[1:] if arguments is None else arguments
    if words[:1] not in (["train"], ["launch"]):
        sys.exit(_run(words))
    # Training answers these signals, and launch hands them on; every other command is ended by them, as usual.
    with STOP_REQUEST:
        status = _run(words)
        if arguments is None:
            STOP_REQUEST.ignore_from_now_on()
    sys.exit(status)


def _run(words: list[str]) -> int | str | None:
    try:
        from hpcgnn.command_line import run
        from hpcgnn.run.output import prepare_streams

        prepare_streams()
    except KeyboardInterrupt:
        print("hpcgnn: interrupted", file=sys.stderr)
        return 130
    return run(words)


if __name__ == "__main__":
    main()
