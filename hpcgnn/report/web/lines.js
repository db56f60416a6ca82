// Curves of runs: hover, zoom by dragging, panning with Shift, smoothing, a logarithmic axis.

const AXES = { epoch: "epoch", seconds: "training time", bytes: "bytes sent so far" };
const AXIS_UNITS = { epoch: "", seconds: "s", bytes: "B" };
const PLOT_HEIGHT = 262, MOST_ROWS = 14;

// The exponential mean of TensorBoard: each point weighs the ones before it, the first ones without a bias to zero.
function smoothed(values, weight) {
  if (!weight) return values;
  let last = 0, factor = 1;
  return values.map((value) => {
    if (value === null) return null;
    last = last * weight + (1 - weight) * value;
    factor *= weight;
    return last / (1 - factor);
  });
}

// A chart may stand over an axis of its own.
function axisOf(chart, state) {
  return chart.data.axis || state.axis;
}

// The visible curves of a panel, with their points on the chosen axis.
function curvesOf(panel, axis, state, runs) {
  return panel.series.filter((one) => state.isVisible(one.run)).map((one) => {
    const run = runs[one.run], place = panel.bySplit ? panel.series.indexOf(one) : run.color;
    const means = smoothed(one.y, state.smoothing);
    const points = [];
    run.x[axis].forEach((x, index) => {
      if (x === null || one.y[index] === null) return;
      points.push({ x, y: means[index], raw: one.y[index], band: one.band ? one.band[index] || 0 : 0 });
    });
    points.sort((a, b) => a.x - b.x);
    return { name: panel.bySplit ? one.label : run.name, color: `var(--run${place})`,
      dash: panel.bySplit ? "" : DASHES[run.dash], points, hasBand: Boolean(one.band) };
  }).filter((one) => one.points.length);
}

function rangeOf(curves, window, isLog, hasRaw) {
  let low = Infinity, high = -Infinity;
  const take = (value) => {
    if (isLog && value <= 0) return;
    low = Math.min(low, value);
    high = Math.max(high, value);
  };
  for (const curve of curves) {
    for (const point of curve.points) {
      if (point.x < window[0] || point.x > window[1]) continue;
      take(point.y);
      if (hasRaw) take(point.raw);
      if (curve.hasBand) { take(point.y - point.band); take(point.y + point.band); }
    }
  }
  if (low > high) return null;
  // Smoothing leaves differences of the last digit, which are no range.
  if (high - low <= 1e-9 * Math.max(Math.abs(low), Math.abs(high))) { const pad = Math.abs(low) * 0.1 || 1; low -= isLog ? low / 2 : pad; high += pad; }
  if (isLog) return [low / 1.08, high * 1.08];
  const pad = 0.05 * (high - low);
  return [low >= 0 ? Math.max(0, low - pad) : low - pad, high + pad];
}

function drawLines(box, panel, chart, state, runs) {
  const axis = axisOf(chart, state), curves = curvesOf(panel, axis, state, runs);
  box.replaceChildren();
  if (!curves.length) return addEmpty(box, panel.title);
  const xs = curves.flatMap((curve) => [curve.points[0].x, curve.points[curve.points.length - 1].x]);
  const whole = [axis === "epoch" ? Math.min(...xs) : 0, Math.max(...xs)];
  if (whole[0] === whole[1]) { whole[0] -= 0.5; whole[1] += 0.5; }
  const shown = chart.zoom || whole;
  const isLog = chart.log === undefined ? Boolean(panel.log) : chart.log;
  const range = rangeOf(curves, shown, isLog, state.smoothing > 0) || (isLog ? [0.1, 1] : [0, 1]);
  const plot = newPlot(box, PLOT_HEIGHT), svg = plot.svg;
  svg.setAttribute("tabindex", "0");
  svg.setAttribute("aria-label", panel.title);
  let top = addText(svg, panel.title + (panel.unit === "%" || panel.unit === "bits" ? ` (${panel.unit})` : ""), 0, 12, plot.width, { class: "title" }) + 6;
  if (panel.bySplit) top += addLegend(svg, curves, top - 2, plot.width);
  const axisUnit = panel.unit === "%" || panel.unit === "bits" ? "" : panel.unit;
  const ticks = isLog ? logTicks(range[0], range[1]) : linearTicks(range[0], range[1], 5);
  const labels = ticks.map((tick) => quantity(tick, axisUnit, plain));
  const left = Math.max(30, 12 + LETTER * Math.max(0, ...labels.map((label) => label.length)));
  const area = { left, right: plot.width - 10, top, bottom: PLOT_HEIGHT - 38 };
  const place = { x: (x) => area.left + (x - shown[0]) / (shown[1] - shown[0]) * (area.right - area.left),
    y: (y) => {
      const share = isLog ? Math.log(Math.max(y, 1e-300) / range[0]) / Math.log(range[1] / range[0]) : (y - range[0]) / (range[1] - range[0]);
      return area.bottom - share * (area.bottom - area.top);
    } };
  ticks.forEach((tick, index) => {
    add(svg, "line", { class: "grid", x1: area.left, x2: area.right, y1: place.y(tick), y2: place.y(tick) });
    add(svg, "text", { x: area.left - 7, y: place.y(tick) + 4, "text-anchor": "end" }, labels[index]);
  });
  addHorizontalAxis(svg, shown, area, place, axis);
  const clip = "clip" + (drawLines.count = (drawLines.count || 0) + 1);
  add(add(add(svg, "defs"), "clipPath", { id: clip }), "rect", { x: area.left - 1, y: area.top - 3, width: area.right - area.left + 4, height: area.bottom - area.top + 6 });
  const inside = add(svg, "g", { "clip-path": `url(#${clip})` });
  for (const curve of curves) addCurve(inside, curve, place, shown, state.smoothing > 0, isLog);
  addCursor({ svg, plot, area, place, shown, whole, curves, panel, chart, axis, state });
}

function addHorizontalAxis(svg, shown, area, place, axis) {
  const ticks = linearTicks(shown[0], shown[1], (area.right - area.left) / 62, axis === "epoch" ? 1 : 0);
  for (const tick of ticks) {
    const x = place.x(tick);
    add(svg, "line", { class: "grid", x1: x, x2: x, y1: area.bottom, y2: area.bottom + 4 });
    add(svg, "text", { x, y: area.bottom + 17, "text-anchor": x > area.right - 16 ? "end" : "middle" }, quantity(tick, AXIS_UNITS[axis], plain));
  }
  add(svg, "line", { class: "grid", x1: area.left, x2: area.right, y1: area.bottom, y2: area.bottom });
  add(svg, "text", { x: (area.left + area.right) / 2, y: area.bottom + 33, "text-anchor": "middle" }, AXES[axis]);
}

function pathOf(points, place, key) {
  return points.map((point, index) => `${index ? "L" : "M"}${place.x(point.x).toFixed(1)} ${place.y(point[key]).toFixed(1)}`).join("");
}

function addCurve(parent, curve, place, shown, hasRaw, isLog) {
  const points = isLog ? curve.points.filter((point) => point.raw > 0) : curve.points;
  if (!points.length) return;
  if (curve.hasBand && !hasRaw) {
    const low = isLog ? Math.min(...points.map((point) => point.y)) * 1e-3 : -Infinity;
    const upper = points.map((point) => ({ x: point.x, y: point.y + point.band }));
    const lower = points.map((point) => ({ x: point.x, y: Math.max(low, point.y - point.band) })).reverse();
    add(parent, "path", { d: pathOf([...upper, ...lower], place, "y") + "Z", style: `fill:${curve.color}`, "fill-opacity": 0.15 });
  }
  const style = `stroke:${curve.color}`;
  if (hasRaw) add(parent, "path", { class: "curve", d: pathOf(points, place, "raw"), style: style + ";stroke-width:1.2", "stroke-opacity": 0.25 });
  add(parent, "path", { class: "curve", d: pathOf(points, place, "y"), style, "stroke-dasharray": curve.dash || null });
  const within = points.filter((point) => point.x >= shown[0] && point.x <= shown[1]);
  if (within.length <= 2) {
    for (const point of within) add(parent, "circle", { cx: place.x(point.x), cy: place.y(point.y), r: 3.5, style: `fill:${curve.color}` });
  }
}

function nearest(points, x) {
  let low = 0, high = points.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (points[middle].x < x) low = middle; else high = middle;
  }
  return Math.abs(points[low].x - x) <= Math.abs(points[high].x - x) ? points[low] : points[high];
}

// What follows the pointer: a line, dots and values; and zooming and panning.
function addCursor(view) {
  const { svg, area, place, shown, whole, curves, chart, axis, state } = view;
  const layer = add(svg, "g", { visibility: "hidden" });
  const line = add(layer, "line", { class: "cursor", y1: area.top, y2: area.bottom });
  const dots = curves.map((curve) => add(layer, "circle", { r: 4, style: `fill:${curve.color};stroke:var(--card)`, "stroke-width": 1.5 }));
  const selection = add(svg, "rect", { class: "selection", y: area.top, height: area.bottom - area.top, visibility: "hidden" });
  let start = null, at = null;
  const toX = (event) => {
    const box = svg.getBoundingClientRect();
    const pixel = (event.clientX - box.left) * view.plot.width / box.width;
    return shown[0] + (pixel - area.left) / (area.right - area.left) * (shown[1] - shown[0]);
  };
  const within = (x) => Math.min(shown[1], Math.max(shown[0], x));
  const show = (x) => {
    const found = curves.map((curve) => nearest(curve.points, x));
    at = found.reduce((best, point) => Math.abs(point.x - x) < Math.abs(best.x - x) ? point : best).x;
    line.setAttribute("x1", place.x(at));
    line.setAttribute("x2", place.x(at));
    const rows = [];
    curves.forEach((curve, index) => {
      // A run that has ended long before says nothing here.
      const point = found[index], isNear = Math.abs(point.x - at) <= 0.04 * (shown[1] - shown[0]);
      dots[index].setAttribute("visibility", isNear && point.x >= shown[0] && point.x <= shown[1] ? "visible" : "hidden");
      dots[index].setAttribute("cx", place.x(point.x));
      dots[index].setAttribute("cy", place.y(point.y));
      if (isNear) rows.push([point.y, [curve.color, curve.dash, curve.name, valueText(point, curve, view)]]);
    });
    rows.sort((a, b) => b[0] - a[0]);
    const listed = rows.slice(0, MOST_ROWS).map((row) => row[1]);
    if (rows.length > MOST_ROWS) listed.push(["", "", `and ${rows.length - MOST_ROWS} more`, ""]);
    layer.setAttribute("visibility", "visible");
    const box = svg.getBoundingClientRect(), scale = box.width / view.plot.width;
    showTooltip(window.scrollX + box.left + place.x(at) * scale, window.scrollY + box.top + (area.top + area.bottom) / 2 * scale,
      `${AXES[axis]} ${quantity(at, AXIS_UNITS[axis], axis === "epoch" ? plain : number)}`, listed);
  };
  const hide = () => { layer.setAttribute("visibility", "hidden"); hideTooltip(); };
  svg.addEventListener("pointermove", (event) => {
    const x = toX(event);
    if (start && !start.pans) {
      const ends = [place.x(within(Math.min(start.x, x))), place.x(within(Math.max(start.x, x)))];
      selection.setAttribute("x", ends[0]);
      selection.setAttribute("width", ends[1] - ends[0]);
      selection.setAttribute("visibility", "visible");
      hide();
    } else if (!start) show(within(x));
  });
  svg.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    start = { x: toX(event), pixel: event.clientX, pans: event.shiftKey };
    svg.setPointerCapture(event.pointerId);
  });
  svg.addEventListener("pointerup", (event) => {
    const from = start, x = toX(event);
    start = null;
    selection.setAttribute("visibility", "hidden");
    if (!from || Math.abs(event.clientX - from.pixel) < 6) return;
    if (from.pans) state.zoom(chart, [shown[0] + from.x - x, shown[1] + from.x - x]);
    else state.zoom(chart, [within(Math.min(from.x, x)), within(Math.max(from.x, x))]);
  });
  svg.addEventListener("pointercancel", () => { start = null; selection.setAttribute("visibility", "hidden"); });
  svg.addEventListener("pointerleave", () => { if (!start) hide(); });
  svg.addEventListener("blur", hide);
  svg.addEventListener("dblclick", () => state.zoom(chart, null));
  svg.addEventListener("wheel", (event) => {
    if (!event.ctrlKey) return;      // the plain wheel scrolls the page
    event.preventDefault();
    const x = toX(event), factor = event.deltaY > 0 ? 1.3 : 1 / 1.3;
    const next = shown.map((end) => x + (end - x) * factor);
    state.zoom(chart, next[1] - next[0] >= whole[1] - whole[0] ? null : next);
  }, { passive: false });
  svg.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (event.key === "Escape") state.zoom(chart, null);
    if (!step) return;
    event.preventDefault();
    const longest = curves.reduce((a, b) => b.points.length > a.points.length ? b : a).points;
    const place = at === null ? (step > 0 ? -1 : longest.length) : longest.indexOf(nearest(longest, at));
    show(longest[Math.min(longest.length - 1, Math.max(0, place + step))].x);
  });
}

function valueText(point, curve, view) {
  const unit = view.panel.unit, text = quantity(point.y, unit);
  const band = curve.hasBand && point.band ? ` ± ${quantity(point.band, unit)}` : "";
  return text + band + (view.state.smoothing > 0 ? ` (${quantity(point.raw, unit)})` : "");
}

function addEmpty(box, title) {
  const note = document.createElement("p");
  note.className = "empty";
  note.textContent = `${title}: none of the runs that are shown has it.`;
  box.append(note);
}
