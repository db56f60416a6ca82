"""jobs/claims.py: measured numbers of pages follow from tables, and a difference is named."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "jobs"))

from claims import ClaimError, Claims, agrees, cells_of, evaluate, table_below, value_of

ROOT = Path(__file__).parents[2]
CLAIMS = Claims(ROOT)
FEWER = "send 8.7 to 22 times fewer bytes of messages"


@pytest.fixture
def copy(tmp_path):
    """A checkout of the pages and the tables alone."""
    shutil.copy(ROOT / "README.md", tmp_path)
    shutil.copytree(ROOT / "docs", tmp_path / "docs", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "data/benchmarks", tmp_path / "data/benchmarks")
    return tmp_path


def change(path, before, after):
    """Replace words that stand in a file once."""
    text = path.read_text()
    assert text.count(before) == 1
    path.write_text(text.replace(before, after))


def faults_of(root):
    return Claims(root).check()[1]


# What holds in this checkout

def test_every_number_of_the_pages_is_what_its_table_says():
    figures, faults = CLAIMS.check()
    assert faults == []
    assert {"README.md", "docs/index.md"} <= {figure.page for figure in figures}


def test_the_command_lists_each_number_with_the_command_that_measures_it():
    done = subprocess.run([sys.executable, ROOT / "jobs/claims.py"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    rows = [line for line in done.stdout.splitlines() if line.startswith("| README.md | 8.7 |")]
    assert len(rows) == 1 and "`min(fewer)` | methods.md" in rows[0] and "jobs/reproduce.sh fidelity" in rows[0]


def test_every_number_that_changes_on_a_page_is_found(copy):
    figures = CLAIMS.check()[0]
    for page in {figure.page for figure in figures}:
        text = (copy / page).read_text()
        places = {figure.place: figure for figure in figures if figure.page == page}
        for place in sorted(places, key=lambda place: -place.start):
            shown = text[place.start:place.stop]
            # By five units of the last decimal, more than any rounding; words become ten.
            other = re.sub(r"\d(?=\D*$)", lambda last: str((int(last[0]) + 5) % 10), shown)
            text = text[:place.start] + (other if other != shown else "ten") + text[place.stop:]
        (copy / page).write_text(text)
    changed, faults = Claims(copy).check()
    assert changed == []
    assert len(faults) == len(figures)
    assert all(fault.endswith("correct the page, or measure anew") for fault in faults)


@pytest.mark.parametrize("claim", CLAIMS.content["claims"], ids=lambda claim: f"{claim['page']}: {claim['text'][:30]}")
def test_every_cell_of_a_claim_decides_one_of_its_numbers(claim):
    cells, expressions = CLAIMS.cells_of_claim(claim), re.findall(r"\{([^}]*)\}", claim["text"])
    assert expressions
    right = [evaluate(expression, cells) for expression in expressions]
    for name, value in cells.items():
        other = [cell and 3 * cell for cell in value] if isinstance(value, list) else 3 * value + 1
        assert [evaluate(expression, {**cells, name: other}) for expression in expressions] != right, name


# What is found

def test_a_number_that_changes_in_a_table_is_named_with_its_page(copy):
    table = copy / "data/benchmarks/methods.md"
    table.write_text(table.read_text().replace("| 0.43 | 8.7 | 2.09 |", "| 0.43 | 8.2 | 2.09 |"))
    done = subprocess.run([sys.executable, ROOT / "jobs/claims.py", copy], capture_output=True, text=True)
    assert done.returncode == 1
    assert "README.md says 8.7 in" in done.stderr and "where methods.md has 8.2 (min(fewer))" in done.stderr
    assert "docs/index.md says 8.7 in" in done.stderr


def test_a_new_number_without_a_table_is_found(copy):
    pages = CLAIMS.content["complete"]
    for page in pages:
        (copy / page).write_text((copy / page).read_text() + "\nIt is 12.5 times faster.\n")
    faults = faults_of(copy)
    assert [fault.partition(" in ")[0] for fault in faults] == [f"{page} says 12.5" for page in pages]
    assert all("It is 12.5 times faster" in fault and "follows from no table" in fault for fault in faults)


def test_other_pages_may_have_numbers_without_a_table(copy):
    (copy / "docs/steps.md").write_text((copy / "docs/steps.md").read_text() + "\nThe default is 12.5.\n")
    assert faults_of(copy) == []


def test_code_comments_and_links_need_no_table(copy):
    text = ("\n`--bits 12.5`\n\n```sh\nhpcgnn train --lr 12.5\n```\n<!-- 12.5 -->\n[figures](steps-12.5.md)"
            " float32 and ogbn_arxiv2\n")
    (copy / "README.md").write_text((copy / "README.md").read_text() + text)
    assert faults_of(copy) == []


def test_words_that_left_a_page_are_named(copy):
    change(copy / "README.md", FEWER, "send far fewer bytes of messages")
    faults = faults_of(copy)
    assert any("README.md has the words" in fault and "0 times" in fault for fault in faults)
    change(copy / "README.md", "exit status is 0", "exit status is zero")
    assert any("no page has the harmless number 'exit status is 0'" in fault for fault in faults_of(copy))


@pytest.mark.parametrize("before, after, complaint", [
    ("## All methods", "## Every method", "'## All methods' stand 0 times"),
    ("(`bash jobs/reproduce.sh fidelity`, commits 43c7125 to b67267a)", "", "does not say"),
    ("| ± its error | times fewer |", "| ± its error | fewer |", "no column ['times fewer']"),
])
def test_a_table_that_lost_its_name_command_or_column_backs_nothing(copy, before, after, complaint):
    change(copy / "data/benchmarks/methods.md", before, after)
    assert any("README.md" in fault and "methods.md can't back it" in fault and complaint in fault
               for fault in faults_of(copy))


# How numbers are read and compared

@pytest.mark.parametrize("shown, value, same", [
    ("8.7", 8.74, True), ("8.7", 8.76, False), ("22", 21.7, True), ("22", 21.4, False), ("1.20", 1.204, True),
    ("−0.85", -0.85, True), ("0.85", -0.85, False), ("1,289", 1289.3, True), ("1,289", 1289.6, False),
    ("4e-8", 4.4e-8, True), ("4e-8", 4.6e-8, False), ("three", 3, True), ("three", 4, False),
])
def test_a_number_agrees_with_what_rounds_to_it(shown, value, same):
    assert agrees(shown, value) == same


def test_cells_are_read_as_tables_write_them():
    rows = table_below("some words\n\nand the **table**:\n\n| model | steps | s (epochs) |\n|---|---|---|\n"
                       "| GCN | 1 | **28.6** (64) |\n| | auto | 7.64 (7) |\n| SAGE | 1 | - |\n", "and the **table**")
    assert cells_of(rows, {"model": "GCN"}, "s (epochs)") == [28.6, 7.64]
    assert cells_of(rows, {"model": "GCN", "steps": "auto"}, "s (epochs)", part=1) == 7
    assert cells_of(rows, {"steps": "1"}, "s (epochs)") == [28.6, None]
    assert cells_of(rows, distinct="model") == 2
    assert table_below("below\n| ms | MB | ms |\n|---|---|---|\n| 1 | 2 | 3 |", "below") == [
        {"ms": "1", "MB": "2", "ms (2)": "3"}]
    assert value_of("1,155.5") == 1155.5 and evaluate("min(a) / b", {"a": [3.0, None, 2.0], "b": 4.0}) == 0.5
    for wrong, words in (({"where": {"model": "GAT"}, "column": "steps"}, "no row"), ({"column": "loss"}, "no column"),
                         ({"where": {"model": "SAGE"}, "column": "s (epochs)"}, "no number")):
        with pytest.raises(ClaimError, match=words):
            cells_of(rows, **wrong)


def test_an_expression_must_read_a_cell():
    with pytest.raises(ClaimError, match="names none of its cells"):
        evaluate("8.7", {"fewer": [8.7]})
