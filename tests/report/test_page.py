"""The HTML page: one file that needs no other, with everything the user named shown as text."""

import base64
import re
from html.parser import HTMLParser

import pytest
from report.fake_runs import write_adaptive_run, write_run

pytest.importorskip("jinja2", reason="jinja2 is not installed (pip install 'hpcgnn[report]')")
pytest.importorskip("matplotlib", reason="matplotlib is not installed (pip install 'hpcgnn[report]')")

from hpcgnn.errors import ConfigError
from hpcgnn.report.page import write_report
from hpcgnn.report.run_folder import read_runs

VOID_ELEMENTS = {"meta", "source", "img", "br"}


class Outline(HTMLParser):
    """Checks that elements close in order and collects their names, sources and text."""

    def __init__(self, page):
        super().__init__()
        self.open, self.elements, self.sources, self.text = [], [], [], ""
        self.feed(page)
        assert not self.open

    def handle_starttag(self, tag, attributes):
        self.elements.append(tag)
        self.sources += [value for name, value in attributes if name in ("src", "srcset", "href")]
        if tag not in VOID_ELEMENTS:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def read_page(paths, out):
    write_report(read_runs(paths), out)
    return Outline(out.read_text(encoding="utf-8"))


def test_the_page_is_self_contained_and_its_figures_lie_beside_it(tmp_path):
    out = tmp_path / "new" / "all.html"
    runs = read_runs([write_run(tmp_path / "fp32"), write_run(tmp_path / "packed", scale=16)])
    files = write_report(runs, out)
    assert [file.name for file in files] == ["all.html", "all-loss.png", "all-score.png", "all-bytes.png",
                                             "all-time.png"]
    page = Outline(out.read_text(encoding="utf-8"))
    assert len(page.sources) == 8   # four figures, for a light and a dark page
    for source in page.sources:
        assert base64.b64decode(re.fullmatch("data:image/png;base64,(.*)", source)[1]).startswith(b"\x89PNG")
    assert "script" not in page.elements
    for file in files[1:]:
        assert file.read_bytes().startswith(b"\x89PNG")


def test_names_and_settings_are_shown_as_text(tmp_path):
    page = read_page([write_run(tmp_path / "<script>alert(1)<x>")], tmp_path / "report.html")
    assert "script" not in page.elements
    assert "<script>alert(1)<x>" in page.text
    assert "cora <b>" in page.text


def test_the_table_holds_scores_bytes_ratios_and_memory(tmp_path):
    page = read_page([write_run(tmp_path / "fp32"), write_run(tmp_path / "packed", scale=16, seeds=(0, 1))],
                     tmp_path / "report.html")
    for text in ("78.12 ± 0.41", "64.4", "1/14.6", "1.23 GB", "4.21 MB", "bands one standard deviation"):
        assert text in page.text


def test_an_adaptive_run_has_all_figures_and_its_widths_as_text(tmp_path):
    out = tmp_path / "report.html"
    files = write_report(read_runs([write_run(tmp_path / "fp32"), write_adaptive_run(tmp_path / "sylvie")]), out)
    assert [file.stem.removeprefix("report-") for file in files[1:]] == [
        "loss", "score", "bytes", "time", "waiting", "widths", "execution", "descent", "pairs"]
    text = Outline(out.read_text(encoding="utf-8")).text
    for part in ("mean bits", "synchronous", "blocked", "Execution and staleness", "1: 60 %, 2: 15 %, 8: 25 %"):
        assert part in text


def test_the_page_of_older_runs_has_no_empty_columns(tmp_path):
    text = read_page([write_run(tmp_path / "run")], tmp_path / "report.html").text
    assert "mean bits" in text
    assert "synchronous" not in text and "blocked" not in text


def test_an_unfinished_run_is_said_to_be_one(tmp_path):
    finished, halfway = write_run(tmp_path / "a"), write_run(tmp_path / "half", num_epochs=17, is_complete=False)
    text = " ".join(read_page([finished, halfway], tmp_path / "report.html").text.split())
    assert "half has no summary.json: it is still running or was interrupted. It is shown as of epoch 17." in text
    assert "a has no summary.json" not in text


def test_an_unwritable_place_is_one_clear_error(tmp_path):
    tmp_path.joinpath("file").write_text("")
    with pytest.raises(ConfigError, match=r"can't be written: .*; choose another with --out"):
        write_report(read_runs([write_run(tmp_path / "run")]), tmp_path / "file" / "report.html")
