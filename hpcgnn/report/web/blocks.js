// Bars, a row a run with its parts, and columns, one a rank or category.

function drawBars(box, chart, state, runs) {
  const data = chart.data;
  const rows = data.rows.filter((row) => state.isVisible(row.run));
  box.replaceChildren();
  if (!rows.length) return addEmpty(box, chart.title);
  const colorOf = (place) => partColor(data.colors ? data.colors[place] : place);
  const plot = newPlot(box, 10), svg = plot.svg, width = plot.width;
  svg.setAttribute("aria-label", chart.title);
  const used = data.parts.map((name, place) => ({ name, color: colorOf(place), place }))
    .filter((part) => rows.some((row) => row.values[part.place] > 0));
  let y = used.length > 1 ? addLegend(svg, used, 0, width) : 0;
  const longest = Math.max(...rows.map(totalOf)) || 1;
  for (const row of rows) {
    // The name stands on the left of the line above its bar, the numbers on the right, or below it where both don't fit.
    const run = runs[row.run];
    const offset = 16;
    const fits = offset + LETTER * (row.label.length + row.note.length + 3) <= width;
    add(svg, "circle", { cx: 5, cy: y + 8, r: 5, style: `fill:${runColor(run)}` });
    let height = addText(svg, row.label, offset, y + 12, width - offset, { class: "ink" });
    if (fits) add(svg, "text", { x: width, y: y + 12, "text-anchor": "end" }, row.note);
    else height += addText(svg, row.note, offset, y + 12 + height, width - offset, {});
    y += height + 3;
    add(svg, "rect", { class: "track", x: 0, y, width, height: 13, rx: 3 });
    let left = 0;
    row.values.forEach((value, place) => {
      if (!(value > 0)) return;
      const length = value / longest * width;
      const part = add(svg, "rect", { x: left, y, width: Math.max(length, 0.7), height: 13, style: `fill:${colorOf(place)}` });
      explain(part, row.label, () => data.parts.map((name, index) => [colorOf(index), "", name, quantity(row.values[index], data.unit)]));
      left += length;
    });
    y += 13 + 13;
  }
  setHeight(plot, y - 8);
}

function totalOf(row) { return row.values.reduce((sum, value) => sum + value, 0); }

function drawColumns(box, panel, chart) {
  box.replaceChildren();
  const plot = newPlot(box, 210), svg = plot.svg, width = plot.width;
  svg.setAttribute("aria-label", panel.title);
  let top = addText(svg, panel.title, 0, 12, width, { class: "title" }) + 2;
  if (panel.note) top += addText(svg, panel.note, 0, top + 10, width, {});
  const several = panel.series.length > 1;
  const items = several ? panel.series.map((one, place) => ({ name: one.name, color: `var(--run${place % 8})` }))
    : panel.parts.map((name, place) => ({ name, color: partColor(place) }));
  if (items.length > 1) top += addLegend(svg, items, top + 4, width);
  const height = top + 150, bottom = height - 34;
  setHeight(plot, height);
  const totals = panel.series.flatMap((one) => panel.categories.map((_, place) => one.values.reduce((sum, part) => sum + part[place], 0)));
  const most = Math.max(...totals) * 1.04 || 1;
  const ticks = linearTicks(0, most, 3), labels = ticks.map((tick) => quantity(tick, panel.unit, plain));
  const left = 12 + LETTER * Math.max(...labels.map((label) => label.length));
  const y = (value) => bottom - value / most * (bottom - top - 8);
  ticks.forEach((tick, place) => {
    add(svg, "line", { class: "grid", x1: left, x2: width, y1: y(tick), y2: y(tick) });
    add(svg, "text", { x: left - 7, y: y(tick) + 4, "text-anchor": "end" }, labels[place]);
  });
  const slot = (width - left) / panel.categories.length, every = Math.ceil(LETTER * (panel.categories[panel.categories.length - 1].length + 2) / slot);
  panel.categories.forEach((category, place) => {
    const from = left + slot * place + slot * 0.12, each = slot * 0.76 / panel.series.length;
    panel.series.forEach((one, order) => {
      let below = 0;
      one.values.forEach((part, index) => {
        const color = several ? `var(--run${order % 8})` : partColor(index);
        const bar = add(svg, "rect", { x: from + each * order, y: y(below + part[place]), width: Math.max(each - (several ? 0.5 : 0), 0.5), height: y(below) - y(below + part[place]), style: `fill:${color}`, "fill-opacity": several && index ? 0.45 : 1 });
        explain(bar, `${chart.data.axis} ${category}${one.name ? ", " + one.name : ""}`, () => panel.parts.map((name, part) => [several ? "" : partColor(part), "", name, quantity(one.values[part][place], panel.unit)]));
        below += part[place];
      });
    });
    if (place % every === 0) add(svg, "text", { x: left + slot * (place + 0.5), y: bottom + 16, "text-anchor": "middle" }, category);
  });
  add(svg, "text", { x: (left + width) / 2, y: bottom + 31, "text-anchor": "middle" }, chart.data.axis);
}
