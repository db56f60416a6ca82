"""jobs/count_tests.py, which adds up the JUnit files of all ranks of all runs."""

import subprocess
import sys
from pathlib import Path

COUNT_TESTS = Path(__file__).parents[2] / "jobs/count_tests.py"
TAGS = {"passed": "", "failed": "<failure/>", "error": "<error/>", "skipped": "<skipped/>"}


def write_result(folder, run, rank, **outcomes):
    cases = "".join(f'<testcase classname="c" name="{name}">{TAGS[outcome]}</testcase>'
                    for name, outcome in outcomes.items())
    (folder / run).mkdir(exist_ok=True)
    (folder / run / f"rank-{rank}.xml").write_text(f"<testsuites><testsuite>{cases}</testsuite></testsuites>")


def count(folder):
    """Exit status and printed lines."""
    done = subprocess.run([sys.executable, COUNT_TESTS, folder], capture_output=True, text=True)
    assert done.stderr == ""
    return done.returncode, done.stdout.splitlines()


def test_runs_add_up_and_the_total_stands_alone_on_the_last_line(tmp_path):
    write_result(tmp_path, "serial-1", 0, a="passed", b="passed", c="skipped")
    for rank in (0, 1):
        write_result(tmp_path, "openmpi-2", rank, d="passed")
    status, lines = count(tmp_path)
    assert status == 0
    assert lines[-1] == "3 passed, 0 failed, 1 skipped"


def test_a_test_that_fails_on_one_rank_has_failed(tmp_path):
    write_result(tmp_path, "openmpi-2", 0, a="passed", b="passed")
    write_result(tmp_path, "openmpi-2", 1, a="error", b="passed")
    status, lines = count(tmp_path)
    assert status == 1
    assert lines[-2:] == ["    failed: c::a", "1 passed, 1 failed, 0 skipped"]


def test_files_that_take_long_are_named_with_their_seconds(tmp_path):
    (tmp_path / "serial-1").mkdir()
    cases = "".join(f'<testcase classname="tests.{name}" name="a" time="{seconds}"/>'
                    for name, seconds in (("slow", 4), ("quick", 3), ("slow", 7), ("slower", 20)))
    (tmp_path / "serial-1/rank-0.xml").write_text(f"<testsuites><testsuite>{cases}</testsuite></testsuites>")
    assert count(tmp_path)[1][1:-1] == ["      20 s: tests.slower", "      11 s: tests.slow"]


def test_ranks_without_a_result_are_one_failure(tmp_path):
    write_result(tmp_path, "mpich-3", 1, a="passed")
    status, lines = count(tmp_path)
    assert status == 1
    assert lines[-2:] == ["    failed: rank 0, 2 ended without a result", "1 passed, 1 failed, 0 skipped"]


def test_a_rank_count_without_tests_is_no_failure_but_no_test_at_all_is(tmp_path):
    write_result(tmp_path, "mpich-1", 0)
    assert count(tmp_path) == (1, ["mpich-1      0 passed, 0 failed, 0 skipped", "0 passed, 0 failed, 0 skipped"])
    write_result(tmp_path, "serial-1", 0, a="passed")
    assert count(tmp_path)[0] == 0
