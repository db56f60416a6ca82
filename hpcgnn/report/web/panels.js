// One panel a run: shares of widths, execution, bytes by pair of ranks, learned widths by in-degree.

const PANEL_HEIGHT = 190;

function newPanel(box, panel, items) {
  box.replaceChildren();
  const plot = newPlot(box, PANEL_HEIGHT);
  plot.svg.setAttribute("aria-label", panel.title);
  let top = addText(plot.svg, panel.title, 0, 12, plot.width, { class: "title" }) + 4;
  if (items.length) top += addLegend(plot.svg, items, top, plot.width);
  setHeight(plot, top + 158);
  return { ...plot, area: { left: 44, right: plot.width - 30, top: top + 4, bottom: top + 122 } };
}

function epochPlaces(panel, area) {
  const first = panel.epochs[0], last = panel.epochs[panel.epochs.length - 1];
  const step = panel.epochs.length > 1 ? panel.epochs[1] - first : 1;
  const x = (epoch) => area.left + (epoch - first + 0.5) / (last - first + step) * (area.right - area.left);
  return { first, last, step, x, start: (place) => x(panel.epochs[place] - 0.5), end: (place) => x(panel.epochs[place] - 0.5 + step) };
}

function addEpochAxis(svg, panel, area, places) {
  for (const tick of linearTicks(places.first, places.last, (area.right - area.left) / 80, 1)) {
    add(svg, "text", { x: places.x(tick), y: area.bottom + 16, "text-anchor": "middle" }, plain(tick));
  }
  add(svg, "text", { x: (area.left + area.right) / 2, y: area.bottom + 31, "text-anchor": "middle" }, "epoch");
}

// A step a value; a gap where there is none.
function stepPath(values, places, y) {
  let path = "", isOpen = false;
  values.forEach((value, place) => {
    if (value === null) { isOpen = false; return; }
    path += `${isOpen ? "L" : "M"}${places.start(place).toFixed(1)} ${y(value).toFixed(1)}L${places.end(place).toFixed(1)} ${y(value).toFixed(1)}`;
    isOpen = true;
  });
  return path;
}

function hoverEpochs(svg, panel, area, places, rows) {
  const cover = add(svg, "rect", { x: area.left, y: area.top, width: area.right - area.left, height: area.bottom - area.top, "fill-opacity": 0, fill: "#000" });
  cover.addEventListener("pointermove", (event) => {
    const box = cover.getBoundingClientRect();
    const place = Math.min(panel.epochs.length - 1, Math.floor((event.clientX - box.left) / box.width * panel.epochs.length));
    showTooltip(event.pageX, event.pageY, `epoch ${panel.epochs[place]}`, rows(place));
  });
  cover.addEventListener("pointerleave", hideTooltip);
}

function drawAreas(box, panel) {
  const items = panel.widths.map((width) => ({ name: `${width} bit${width > 1 ? "s" : ""}`, color: widthColor(width) }));
  if (panel.base) items.push({ name: "base width", color: "var(--ink)", dash: "" });
  const plot = newPanel(box, panel, items), { svg, area } = plot, places = epochPlaces(panel, area);
  const y = (share) => area.bottom - share / 100 * (area.bottom - area.top);
  const below = panel.epochs.map(() => 0);
  panel.shares.forEach((share, order) => {
    let path = "";
    share.forEach((value, place) => {
      if (value === null) return;
      const [left, right] = [places.start(place).toFixed(1), places.end(place).toFixed(1)];
      path += `M${left} ${y(below[place]).toFixed(1)}V${y(below[place] + value).toFixed(1)}H${right}V${y(below[place]).toFixed(1)}Z`;
      below[place] += value;
    });
    const color = widthColor(panel.widths[order]);
    add(svg, "path", { d: path, style: `fill:${color};stroke:${color}`, "stroke-width": 0.3, "shape-rendering": "crispEdges" });
  });
  for (const tick of [0, 50, 100]) add(svg, "text", { x: area.left - 6, y: y(tick) + 4, "text-anchor": "end" }, `${tick} %`);
  if (panel.base) addBaseWidth(svg, panel, area, places);
  addEpochAxis(svg, panel, area, places);
  hoverEpochs(svg, panel, area, places, (place) => [
    ...panel.widths.map((width, order) => [widthColor(width), "", `${width} bit${width > 1 ? "s" : ""}`, quantity(panel.shares[order][place], "%")]),
    ...(panel.base ? [["var(--ink)", "", "base width", quantity(panel.base[place], "bits", plain)]] : [])]);
}

function addBaseWidth(svg, panel, area, places) {
  const most = Math.max(8, ...panel.base.filter((value) => value !== null));
  const y = (value) => area.bottom - 6 - Math.log2(value) / Math.log2(most) * (area.bottom - area.top - 12);
  const path = stepPath(panel.base, places, y);
  add(svg, "path", { class: "curve", d: path, style: "stroke:var(--card);stroke-width:4.5" });
  add(svg, "path", { class: "curve", d: path, style: "stroke:var(--ink);stroke-width:1.8" });
  for (let width = 1; width <= most; width *= 2) add(svg, "text", { x: area.right + 6, y: y(width) + 4 }, width);
}

function drawBands(box, panel) {
  const items = [{ name: "synchronous epoch", color: "var(--sync)" }, { name: "asynchronous epoch", color: "var(--async)" }];
  if (panel.ages) items.push({ name: "age of the oldest halo row", color: "var(--ink)", dash: "" });
  const plot = newPanel(box, panel, items), { svg, area } = plot, places = epochPlaces(panel, area);
  let from = 0;
  panel.modes.forEach((mode, place) => {
    if (panel.modes[place + 1] === mode) return;
    if (mode) {
      add(svg, "rect", { x: places.start(from), y: area.top, width: places.end(place) - places.start(from), height: area.bottom - area.top, style: `fill:var(--${mode})` });
    }
    from = place + 1;
  });
  if (panel.ages) {
    const oldest = Math.max(1, ...panel.ages.filter((age) => age !== null));
    const y = (age) => area.bottom - 6 - age / oldest * (area.bottom - area.top - 12);
    add(svg, "path", { class: "curve", d: stepPath(panel.ages, places, y), style: "stroke:var(--ink);stroke-width:1.6" });
    for (const tick of linearTicks(0, oldest, 4, 1)) add(svg, "text", { x: area.left - 6, y: y(tick) + 4, "text-anchor": "end" }, plain(tick));
  }
  addEpochAxis(svg, panel, area, places);
  hoverEpochs(svg, panel, area, places, (place) => [
    ["", "", "execution", { sync: "synchronous", async: "asynchronous" }[panel.modes[place]] || "unknown"],
    ...(panel.ages ? [["", "", "oldest halo row", quantity(panel.ages[place], "epochs", plain)]] : [])]);
}

function drawHeat(box, panel) {
  box.replaceChildren();
  const plot = newPlot(box, 10), { svg } = plot, ranks = panel.cells.length;
  svg.setAttribute("aria-label", panel.title);
  const most = Math.max(...panel.cells.flat());
  let top = addText(svg, panel.title, 0, 12, plot.width, { class: "title" }) + 2;
  top += addText(svg, `darkest: ${quantity(most, "B")}; rows send, columns receive`, 0, top + 10, plot.width, {}) + 20;
  const left = 30, side = Math.min((plot.width - left - 4) / ranks, 56), every = Math.ceil(LETTER * 3 / side), gap = side < 14 ? 0 : 0.5;
  panel.cells.forEach((row, from) => {
    if (from % every === 0) {
      add(svg, "text", { x: left - 7, y: top + side * (from + 0.5) + 4, "text-anchor": "end" }, from);
      add(svg, "text", { x: left + side * (from + 0.5), y: top - 5, "text-anchor": "middle" }, from);
    }
    row.forEach((sent, to) => {
      if (from === to) return;
      const share = sent / most;
      const cell = add(svg, "rect", { x: left + side * to + gap, y: top + side * from + gap, width: side - 2 * gap, height: side - 2 * gap, style: "fill:var(--accent)", "fill-opacity": (0.06 + 0.94 * share).toFixed(3) });
      explain(cell, `rank ${from} to rank ${to}`, () => [["", "", "sent", quantity(sent, "B")]]);
      if (side >= 44) {
        add(svg, "text", { x: left + side * (to + 0.5), y: top + side * (from + 0.5) + 4, "text-anchor": "middle", "pointer-events": "none", "font-size": 11, style: share > 0.75 ? "fill:var(--card)" : "fill:var(--ink)" }, quantity(sent, "B"));
      }
    });
  });
  setHeight(plot, top + side * ranks + 6);
}

function drawDots(box, panel, chart, state, runs) {
  const color = runColor(runs[panel.run]);
  const opacity = (layer) => 1 - 0.65 * layer / Math.max(1, panel.layers.length - 1);
  const plot = newPanel(box, panel, panel.layers.map((_, layer) => ({ name: `rows ${layer + 1}`, color, opacity: opacity(layer) })));
  const { svg, area } = plot, degrees = panel.layers.flatMap((layer) => layer.in_degree);
  const scale = (degree) => Math.log1p(degree), low = scale(Math.min(...degrees)), high = Math.max(scale(Math.max(...degrees)), low + 1e-9);
  const x = (degree) => area.left + 8 + (scale(degree) - low) / (high - low) * (area.right - area.left - 16);
  const widest = Math.max(...panel.layers.flatMap((layer) => layer.bit_width));
  const y = (bits) => area.bottom - (bits - 0.5) / widest * (area.bottom - area.top);
  for (const tick of linearTicks(1, widest, 6, 1)) {
    add(svg, "line", { class: "grid", x1: area.left, x2: area.right, y1: y(tick), y2: y(tick) });
    add(svg, "text", { x: area.left - 6, y: y(tick) + 4, "text-anchor": "end" }, plain(tick));
  }
  const ends = [Math.min(...degrees), Math.max(...degrees)];
  for (const tick of new Set([ends[0], ...logTicks(Math.max(1, ends[0]), ends[1]).filter((one) => Number.isInteger(one)), ends[1]])) {
    if (tick !== ends[1] && x(ends[1]) - x(tick) < 28) continue;
    add(svg, "text", { x: x(tick), y: area.bottom + 16, "text-anchor": "middle" }, plain(tick));
  }
  add(svg, "text", { x: (area.left + area.right) / 2, y: area.bottom + 31, "text-anchor": "middle" }, "in-degree");
  panel.layers.forEach((layer, order) => {
    const most = Math.max(...layer.num_nodes), shift = panel.layers.length > 1 ? 0.3 - 0.6 * order / (panel.layers.length - 1) : 0;
    layer.in_degree.forEach((degree, place) => {
      const dot = add(svg, "circle", { cx: x(degree), cy: y(layer.bit_width[place] + shift), r: 1.8 + 3.4 * Math.sqrt(layer.num_nodes[place] / most), style: `fill:${color}`, "fill-opacity": opacity(order) });
      explain(dot, `rows ${order + 1}, in-degree ${degree}`, () => [["", "", "width", `${layer.bit_width[place]} bits`], ["", "", "nodes", plain(layer.num_nodes[place])]]);
    });
  });
}
