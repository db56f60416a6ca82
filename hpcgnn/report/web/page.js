// The page: what is shown, and how its controls change that.

const page = JSON.parse(document.getElementById("data").textContent);
const figures = [...document.querySelectorAll("figure.chart")].map((figure) => ({ figure, chart: page.charts[figure.dataset.chart] }));
const PANEL_KINDS = { columns: drawColumns, areas: drawAreas, bands: drawBands, heat: drawHeat, dots: drawDots };

const state = {
  axis: "epoch", smoothing: 0, hidden: new Set(), matched: null,
  isVisible(run) { return !this.hidden.has(run) && (this.matched === null || this.matched.has(run)); },
  zoom(chart, window) {
    chart.zoom = window;
    const drawn = figures.find((one) => one.chart === chart);
    drawn.figure.querySelector(".reset").hidden = !window;
    hideTooltip();
    draw(drawn);
  },
};

function draw({ figure, chart }) {
  const plots = figure.querySelector(".plots");
  if (chart.kind === "bars") return drawInto(plots, [chart], (box) => drawBars(box, chart, state, page.runs));
  const panels = (chart.data.panels || chart.data.maps).filter((panel) => 
    chart.kind === "lines" || ((panel.run === undefined || state.isVisible(panel.run)) && (!chart.quantity || panel.quantity === chart.quantity)));
  if (!panels.length) { plots.replaceChildren(); return addEmpty(plots, chart.title); }
  // Cells of many ranks need room.
  if (chart.kind === "heat") plots.style.setProperty("--least", panels.some((panel) => panel.cells.length > 12) ? "440px" : "250px");
  if (chart.kind === "lines") return drawInto(plots, panels, (box, panel) => drawLines(box, panel, chart, state, page.runs));
  return drawInto(plots, panels, (box, panel) => PANEL_KINDS[chart.kind](box, panel, chart, state, page.runs));
}

// A box a panel; boxes are made before anything is drawn, since a panel is as wide as its box.
function drawInto(plots, panels, drawPanel) {
  if (plots.childElementCount !== panels.length || plots.querySelector(":scope > .empty")) {
    plots.replaceChildren(...panels.map(() => document.createElement("div")));
  }
  panels.forEach((panel, place) => drawPanel(plots.children[place], panel));
}

function drawAll() {
  hideTooltip();
  figures.forEach(draw);
  for (const chip of document.querySelectorAll(".chip")) {
    const run = Number(chip.dataset.run);
    chip.setAttribute("aria-pressed", String(!state.hidden.has(run)));
    chip.hidden = state.matched !== null && !state.matched.has(run);
  }
  for (const row of document.querySelectorAll("tr[data-run]")) {
    const run = Number(row.dataset.run);
    row.hidden = state.matched !== null && !state.matched.has(run);
    row.classList.toggle("hidden-run", state.hidden.has(run));
  }
}

function press(buttons, chosen) {
  for (const button of buttons) button.setAttribute("aria-pressed", String(button === chosen));
}

function connectToolbar() {
  const axes = [...document.querySelectorAll("[data-axis]")];
  for (const button of axes) {
    const isKnown = page.runs.some((run) => run.x[button.dataset.axis].some((x) => x > 0));
    button.disabled = !isKnown;
    button.hidden = !isKnown;
    button.addEventListener("click", () => {
      state.axis = button.dataset.axis;
      press(axes, button);
      for (const { figure, chart } of figures) { chart.zoom = null; const reset = figure.querySelector(".reset"); if (reset) reset.hidden = true; }
      drawAll();
    });
  }
  const slider = document.getElementById("smoothing");
  slider.addEventListener("input", () => {
    state.smoothing = Number(slider.value);
    document.getElementById("smoothing-value").textContent = state.smoothing;
    figures.filter(({ chart }) => chart.kind === "lines").forEach(draw);
  });
  for (const chip of document.querySelectorAll(".chip")) {
    const run = Number(chip.dataset.run);
    chip.addEventListener("click", () => { if (!state.hidden.delete(run)) state.hidden.add(run); drawAll(); });
    chip.addEventListener("dblclick", () => { state.hidden = new Set(page.runs.keys()); state.hidden.delete(run); drawAll(); });
  }
  for (const button of document.querySelectorAll("[data-show]")) {
    button.addEventListener("click", () => { state.hidden = new Set(button.dataset.show === "all" ? [] : page.runs.keys()); drawAll(); });
  }
  document.getElementById("toolbar").hidden = false;
}

function connectTables() {
  for (const table of document.querySelectorAll("table.sortable")) {
    [...table.tHead.rows[0].cells].forEach((heading, column) => heading.querySelector("button").addEventListener("click", () => sortTable(table, column)));
  }
  for (const button of document.querySelectorAll("[data-csv]")) {
    button.addEventListener("click", () => download(`hpcgnn-${button.dataset.csv}.csv`, new Blob([csvOf(document.getElementById(button.dataset.csv))], { type: "text/csv" })));
  }
  const baseline = document.getElementById("baseline"), filter = document.getElementById("filter");
  if (!baseline) return;
  baseline.addEventListener("change", () => showDifferences(page.differences, baseline.value));
  filter.addEventListener("input", () => {
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    state.matched = words.length ? matching(words, page.runs.length) : null;
    document.getElementById("filter-note").textContent = state.matched ? `${state.matched.size} of ${page.runs.length} runs` : "";
    drawAll();
  });
}

function connectFigures() {
  for (const { figure, chart } of figures) {
    for (const button of figure.querySelectorAll("[data-save]")) {
      const isOfRuns = chart.kind === "lines" && !chart.data.panels[0].bySplit;
      button.addEventListener("click", () => saveFigure(figure, button.dataset.save, isOfRuns ? page.runs.filter((_, run) => state.isVisible(run))
        .map((run) => ({ name: run.name, color: runColor(run), dash: DASHES[run.dash] })) : []));
    }
    const quantity = figure.querySelector(".quantity");
    if (quantity) {
      chart.quantity = quantity.value;
      quantity.addEventListener("change", () => { chart.quantity = quantity.value; draw({ figure, chart }); });
    }
    if (chart.kind !== "lines") continue;
    figure.querySelector(".reset").addEventListener("click", () => state.zoom(chart, null));
    const log = figure.querySelector(".log");
    const panels = chart.data.panels;
    log.setAttribute("aria-pressed", String(panels.some((panel) => panel.log)));
    log.addEventListener("click", () => {
      chart.log = !(chart.log === undefined ? panels.some((panel) => panel.log) : chart.log);
      log.setAttribute("aria-pressed", String(chart.log));
      draw({ figure, chart });
    });
  }
}

connectTables();
connectFigures();
connectToolbar();
drawAll();
let lastWidth = document.documentElement.clientWidth;
new ResizeObserver(() => {
  const width = document.documentElement.clientWidth;
  if (width !== lastWidth) { lastWidth = width; drawAll(); }
}).observe(document.documentElement);
