"""Fixtures of these tests."""

import pytest

from hpcgnn.__main__ import main


@pytest.fixture
def bench(capsys, monkeypatch):
    """Run a benchmark's command in this process, which is small enough: (exit status, output, complaints).

    It draws its picture only where that is asked for.
    """
    monkeypatch.setattr("hpcgnn.bench.environment.run_in", lambda environment: None)

    def run(*arguments, draws=False):
        if not draws:
            monkeypatch.setattr("hpcgnn.bench.result.why_no_picture", lambda name: "not drawn")
        with pytest.raises(SystemExit) as stop:
            main(["bench", *map(str, arguments)])
        printed = capsys.readouterr()
        return stop.value.code or 0, printed.out, printed.err

    return run
