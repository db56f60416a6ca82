"""The HTML page: one file that needs no other, with everything the user named shown as text."""

import json
import re
from html.parser import HTMLParser

import pytest
from report.fake_runs import write_adaptive_run, write_run

from hpcgnn.errors import ConfigError
from hpcgnn.report.page import write_report
from hpcgnn.report.run_folder import read_runs

VOID_ELEMENTS = {"meta", "source", "img", "br", "input"}
MAX_BYTES = {1: 120_000, 20: 500_000}      # of pages of that many adaptive runs of 100 epochs


class Outline(HTMLParser):
    """Checks that elements close in order and collects their names, attributes and text."""

    def __init__(self, page):
        super().__init__()
        self.open, self.elements, self.attributes, self.text, self.scripts = [], [], [], "", []
        self.feed(page)
        assert not self.open

    def handle_starttag(self, tag, attributes):
        self.elements.append(tag)
        self.attributes += attributes
        if tag not in VOID_ELEMENTS:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] == "script":
            self.scripts.append(data)
        else:
            self.text += data


def write_page(paths, out):
    return write_report(read_runs(paths), out).read_text(encoding="utf-8")


def data_of(page):
    return json.loads(Outline(page).scripts[0])


def test_the_page_loads_nothing_and_lies_alone(tmp_path):
    out = tmp_path / "new" / "all.html"
    page = write_page([write_run(tmp_path / "fp32"), write_adaptive_run(tmp_path / "sylvie")], out)
    assert [file.name for file in out.parent.iterdir()] == ["all.html"]
    assert not re.search(r"https?:|//[a-z0-9.-]+\.[a-z]{2,}/|@import|url\((?!#)", page.replace("url(#${clip})", ""))
    outline = Outline(page)
    assert not {"link", "img", "iframe", "object", "embed"} & set(outline.elements)
    assert not {"src", "srcset", "href", "onclick", "onload"} & {name for name, _ in outline.attributes}
    assert ("content", "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
                       "img-src data: blob:") in outline.attributes


def test_the_same_runs_give_the_same_page(tmp_path):
    paths = [write_adaptive_run(tmp_path / "a", 10), write_run(tmp_path / "b", seeds=(0, 1))]
    assert write_page(paths, tmp_path / "1.html") == write_page(paths, tmp_path / "2.html")


@pytest.mark.parametrize("name", ["<script>alert(1)<x>", "a' \"b\" & c", "<!--", "{{ 7 * 7 }}"])
def test_names_and_settings_are_shown_as_text(tmp_path, name):
    page = write_page([write_run(tmp_path / name), write_run(tmp_path / "b")], tmp_path / "report.html")
    outline = Outline(page)
    assert outline.elements.count("script") == 2        # the data and our own
    assert name in outline.text and "cora <b>" in outline.text
    assert data_of(page)["runs"][0]["name"] == name


def test_a_name_that_ends_the_data_does_not(tmp_path):
    page = write_page([write_run(tmp_path / "x<" / "script>")], tmp_path / "report.html")
    run = read_runs([write_run(tmp_path / "y")])[0]
    object.__setattr__(run, "name", "</script><script>alert(1)</script>")
    evil = write_report([run], tmp_path / "evil.html").read_text()
    assert Outline(page).elements.count("script") == Outline(evil).elements.count("script") == 2
    assert data_of(evil)["runs"][0]["name"] == "</script><script>alert(1)</script>"


def test_numbers_of_the_page_are_those_of_the_folders(tmp_path):
    page = write_page([write_run(tmp_path / "fp32"), write_run(tmp_path / "packed", scale=16, seeds=(0, 1))],
                      tmp_path / "report.html")
    text = Outline(page).text
    for expected in ("78.12 ± 0.41", "64.4 MB", "14.6× fewer", "1.23 GB", "4.21 MB", "bands one standard deviation"):
        assert expected in text
    cells = dict(re.findall(r'<td class="number "[^>]* data-value="([^"]*)">([^<]*)</td>', page))
    assert cells["64400000.0"] == "64.4 MB" and cells["0.7812"].startswith("78.12")
    curve = data_of(page)["charts"]["loss"]["data"]["panels"][0]["series"][0]["y"]
    first = json.loads((tmp_path / "fp32/metrics.jsonl").read_text().splitlines()[0])
    assert curve[0] == pytest.approx(first["loss"], rel=1e-5)


def test_every_table_has_a_heading_button_and_a_row_a_run(tmp_path):
    page = write_page([write_run(tmp_path / f"run{number}", scale=2 ** number) for number in range(3)],
                      tmp_path / "report.html")
    for name in ("results", "settings"):
        table = re.search(rf'<table id="{name}".*?</table>', page, re.S)[0]
        assert re.findall(r'<tr data-run="(\d)">', table) == ["0", "1", "2"]
        assert table.count('<th scope="col"') == table.count("<button") > 1


def test_one_run_has_neither_baseline_nor_comparison(tmp_path):
    page = write_page([write_run(tmp_path / "run")], tmp_path / "report.html")
    assert 'id="baseline"' not in page and "Settings that differ" not in page
    assert data_of(page)["differences"] == {}


def test_an_unfinished_run_is_said_to_be_one(tmp_path):
    finished, halfway = write_run(tmp_path / "a"), write_run(tmp_path / "half", num_epochs=17, is_complete=False)
    text = " ".join(Outline(write_page([finished, halfway], tmp_path / "report.html")).text.split())
    assert "half has no summary.json: it is still running or was interrupted. It is shown as of epoch 17." in text
    assert "a has no summary.json" not in text


def test_an_interrupted_run_with_half_a_line_is_reported_and_a_damaged_one_refused(tmp_path):
    path = write_run(tmp_path / "run", num_epochs=7, is_complete=False)
    metrics = path / "metrics.jsonl"
    metrics.write_text(metrics.read_text() + '{"seed": 0, "epoch": 8, "lo')
    assert data_of(write_page([path], tmp_path / "report.html"))["runs"][0]["x"]["epoch"] == list(range(1, 8))
    metrics.write_text(metrics.read_text() + "\n")
    with pytest.raises(ConfigError, match=r"metrics\.jsonl, line 8 is damaged"):
        write_page([path], tmp_path / "report.html")


def test_many_runs_have_colors_and_dashes_of_their_own(tmp_path):
    paths = [write_run(tmp_path / f"run{number}", num_epochs=1) for number in range(40)]
    assert len({(run["color"], run["dash"])
                for run in data_of(write_page(paths, tmp_path / "report.html"))["runs"]}) == 40


@pytest.mark.parametrize("num_runs", MAX_BYTES)
def test_a_page_is_small(tmp_path, num_runs):
    paths = [write_adaptive_run(tmp_path / f"run{number}", 100) for number in range(num_runs)]
    assert len(write_page(paths, tmp_path / "report.html")) < MAX_BYTES[num_runs]


def test_an_unwritable_place_is_one_clear_error(tmp_path):
    tmp_path.joinpath("file").write_text("")
    with pytest.raises(ConfigError, match=r"can't be written: .*; choose another with --out"):
        write_report(read_runs([write_run(tmp_path / "run")]), tmp_path / "file" / "report.html")
