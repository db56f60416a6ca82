"""The page in a real browser, used as a reader does: sorting, filtering, zooming, smoothing, choosing a baseline."""

import html
import json
import re
import shutil
import subprocess

import pytest
from report.fake_runs import write_adaptive_run, write_run

from hpcgnn.report.page import write_report
from hpcgnn.report.run_folder import read_runs

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no chromium is on the PATH")
# What the script below finds is left as JSON in the page; an error of any script is found too.
HARNESS = """<pre id="found"></pre><script>
const found = {};
window.addEventListener("error", (event) => { found.error = event.message; });
const all = (selector) => [...document.querySelectorAll(selector)];
const heading = (table, text) => all(`#${table} thead button`).find((one) => one.textContent === text);
const shown = (table) => all(`#${table} tbody tr`).filter((row) => !row.hidden);
const names = () => shown("results").map((row) => row.querySelector(".name").textContent);
const curves = () => all("#chart-loss .plots > div:first-child path.curve").length;
const labels = () => all("#chart-loss svg:first-child text").map((one) => one.textContent);
const change = (element, kind, value) => { element.value = value; element.dispatchEvent(new Event(kind)); };
const point = (kind, share, more) => {
  const svg = document.querySelector("#chart-loss svg"), box = svg.getBoundingClientRect();
  svg.dispatchEvent(new PointerEvent(kind, { bubbles: true, button: 0, pointerId: 1, clientY: box.top + 99,
    clientX: box.left + share * box.width, ...more }));
};
SVGElement.prototype.setPointerCapture = () => {};
try { SCRIPT } catch (error) { found.error = error.stack; }
document.getElementById("found").textContent = JSON.stringify(found);
</script></body>"""


def use(page, script):
    """Open a page, run a script in it, and return what it has put in `found`."""
    tried = page.with_name("tried.html")
    tried.write_text(page.read_text().replace("</body>", HARNESS.replace("SCRIPT", script)))
    ended = subprocess.run([BROWSER, "--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1300,900",
                            f"--user-data-dir={page.parent / 'browser'}", "--virtual-time-budget=2000", "--dump-dom",
                            tried.as_uri()], capture_output=True, text=True, timeout=120)
    return json.loads(html.unescape(re.search('<pre id="found">(.*?)</pre>', ended.stdout, re.DOTALL)[1]))


@pytest.fixture
def page(tmp_path):
    runs = [write_run(tmp_path / "fp32"), write_run(tmp_path / "packed", scale=16, num_epochs=20),
            write_adaptive_run(tmp_path / "<img src=x onerror=alert(1)>", seeds=(0, 1))]
    return write_report(read_runs(runs), tmp_path / "report.html")


def test_the_page_answers_its_reader(page):
    found = use(page, """
        found.given = names();
        heading("results", "sent per epoch").click(); found.sorted = names();
        heading("results", "sent per epoch").click(); found.reversed = names();
        change(document.getElementById("baseline"), "change", "1");
        found.differences = all('[data-difference="bytes"]').map((one) => one.textContent);
        found.curves = curves();
        change(document.getElementById("filter"), "input", "uniform packed");
        found.filtered = names(); found.left = curves();
        change(document.getElementById("filter"), "input", "");
        document.querySelector('.chip[data-run="0"]').click(); found.withoutFirst = curves();
        document.querySelector('[data-show="all"]').click();
        point("pointermove", 0.5); found.tooltip = document.getElementById("tooltip").innerText;
        point("pointerdown", 0.5); point("pointerup", 0.8);
        found.zoomed = labels(); found.offersReset = !document.querySelector("#chart-loss .reset").hidden;
        document.querySelector("#chart-loss .reset").click(); found.whole = labels();
        document.querySelector('[data-axis="bytes"]').click(); found.overBytes = labels();
        found.first = document.querySelector("figure.chart").id;
        found.overTime = all("#chart-progress svg:first-child text").pop().textContent;
        change(document.getElementById("smoothing"), "input", "0.9"); found.smoothed = curves();
        found.plots = all("figure.chart").filter((one) => !one.querySelector("svg")).map((one) => one.id);
        found.pictures = all("img").length;
    """)
    evil = "<img src=x onerror=alert(1)>"
    assert found.get("error") is None
    assert found["given"] == ["fp32", "packed", evil]
    assert found["sorted"] in (["packed", evil, "fp32"], [evil, "packed", "fp32"]) and found["reversed"][0] == "fp32"
    assert sorted(found["differences"]) == ["14.6× more", "baseline", "same"]
    assert (found["curves"], found["left"], found["withoutFirst"]) == (3, 1, 2) and found["filtered"] == ["packed"]
    assert evil in found["tooltip"] and "epoch" in found["tooltip"]
    assert found["offersReset"] and "0" not in found["zoomed"] and found["whole"] != found["zoomed"]
    assert found["overBytes"][-1] == "bytes sent so far" and any(label.endswith("GB") for label in found["overBytes"])
    assert (found["first"], found["overTime"]) == ("chart-progress", "training time")
    assert found["smoothed"] == 6     # behind each smoothed curve the values themselves
    assert found["plots"] == [] and found["pictures"] == 0


def test_a_narrow_page_does_not_scroll_sideways(page):
    narrow = page.read_text().replace("<main>", '<main style="max-width:360px">')
    page.write_text(narrow)
    found = use(page, """
        const right = document.querySelector("main").getBoundingClientRect().left + 361;
        const isWide = (one) => one.getBoundingClientRect().right > right;
        found.tooWide = all("main > *, figure.chart, .plots svg").filter(isWide).map((one) => one.id || one.className);
    """)
    assert found == {"tooWide": []}
