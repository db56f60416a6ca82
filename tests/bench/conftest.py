"""Fixtures of these tests."""

import pytest

from hpcgnn.__main__ import main


@pytest.fixture
def bench(capsys, monkeypatch):
    """Run a benchmark's command in this process, which is small enough: (exit status, output, complaints)."""
    monkeypatch.setattr("hpcgnn.bench.environment.run_in", lambda environment: None)

    def run(*arguments):
        with pytest.raises(SystemExit) as stop:
            main(["bench", *map(str, arguments)])
        printed = capsys.readouterr()
        return stop.value.code or 0, printed.out, printed.err

    return run
