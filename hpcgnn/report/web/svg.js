// What all charts share: elements, colors, ticks, texts that break, legends and the tooltip. Texts of the user are set as
// text only, never as markup.

const SVG = document.querySelector("svg").namespaceURI;     // no address is written in this file
const DASHES = ["", "7 3", "2 2.5", "9 3 2 3", "4 2"];
const MOST_TICKS = 40;
const LETTER = 6.6;     // pixels that a letter of 12 px takes at most, on average

function element(name, attributes, text) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (value !== null && value !== undefined) made.setAttribute(key, value);
  }
  if (text !== undefined) made.textContent = text;
  return made;
}

function add(parent, name, attributes, text) {
  return parent.appendChild(element(name, attributes, text));
}

function newPlot(box, height) {
  const width = Math.max(240, Math.floor(box.clientWidth));
  const svg = add(box, "svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img" });
  return { svg, width, height };
}

function setHeight(plot, height) {
  plot.height = height;
  plot.svg.setAttribute("height", height);
  plot.svg.setAttribute("viewBox", `0 0 ${plot.width} ${height}`);
}

function runColor(run) { return `var(--run${run.color})`; }
function partColor(place) { return `var(--part${place % 5})`; }

function widthColor(width) {
  const known = [32, 16, 8, 4, 2, 1].find((one) => one <= width) || 1;
  return `var(--width${known})`;
}

// Break a text into lines of at most `width` pixels, between words or after - _ / . where it can.
function broken(text, width, letter) {
  const most = Math.max(6, Math.floor(width / (letter || LETTER)));
  const lines = [];
  let line = "";
  for (const piece of text.split(/(?<=[\s\-_/.,:])/)) {
    if (line && (line + piece).trimEnd().length > most) { lines.push(line); line = ""; }
    line += piece;
    while (line.length > most) { lines.push(line.slice(0, most)); line = line.slice(most); }
  }
  if (line) lines.push(line);
  return lines;
}

// Write lines of text below each other and return the height that they take.
function addText(svg, text, x, y, width, attributes) {
  const lines = broken(text, width, attributes.class === "title" ? 7.3 : LETTER);
  lines.forEach((line, place) => add(svg, "text", { x, y: y + 15 * place, ...attributes }, line.trimEnd()));
  return 15 * lines.length;
}

// Squares or lines with names, wrapped to the width; returns the height.
function addLegend(svg, items, y, width) {
  let x = 0, top = y;
  for (const item of items) {
    const lines = broken(item.name, width - 30);
    const needed = 26 + LETTER * Math.max(...lines.map((line) => line.length)) + 12;
    if (x > 0 && x + needed > width) { x = 0; top += 17; }
    if (item.dash !== undefined) {
      add(svg, "line", { x1: x, x2: x + 20, y1: top + 7, y2: top + 7, "stroke-width": 2.4, style: `stroke:${item.color}`,
        "stroke-dasharray": item.dash || null });
    } else {
      add(svg, "rect", { x: x + 4, y: top + 2, width: 11, height: 11, rx: 2, style: `fill:${item.color}`,
        "fill-opacity": item.opacity || 1 });
    }
    lines.forEach((line, place) => add(svg, "text", { x: x + 24 - (item.dash === undefined ? 4 : 0), y: top + 11 + 15 * place }, line));
    top += 15 * (lines.length - 1);
    x += needed;
  }
  return top - y + 22;
}

function niceStep(span, count) {
  const rough = span / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(rough));
  return power * ([1, 2, 5, 10].find((one) => one * power >= rough * 0.999) || 10);
}

// Round values within a range, at most about `count` of them.
function linearTicks(low, high, count, least) {
  if (!(high > low)) return [low];
  const step = Math.max(least || 0, niceStep(high - low, count));
  const ticks = [];
  const first = Math.ceil(low / step - 1e-9), most = Math.min(MOST_TICKS, Math.floor(high / step + 1e-9) - first + 1);
  for (let place = 0; place < most; place += 1) ticks.push((first + place) * step);
  return ticks;
}

function logTicks(low, high) {
  const decades = Math.log10(high / low);
  const steps = decades < 1.2 ? [1, 1.5, 2, 3, 5, 7] : decades < 3 ? [1, 2, 5] : [1];
  const every = Math.max(1, Math.ceil(decades / 6));
  const ticks = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power += 1) {
    if (power % every) continue;
    for (const step of steps) {
      const tick = step * 10 ** power;
      if (tick >= low * 0.999 && tick <= high * 1.001) ticks.push(tick);
    }
  }
  return ticks;
}

const tooltip = document.getElementById("tooltip");

// Show rows of [color, dash, name, value] beside a point of the page.
function showTooltip(pageX, pageY, head, rows) {
  tooltip.replaceChildren();
  const top = document.createElement("div");
  top.className = "head";
  top.textContent = head;
  tooltip.append(top);
  for (const [color, dash, name, value] of rows) {
    const row = document.createElement("div"), label = document.createElement("span"), text = document.createElement("b");
    row.className = "row";
    if (color) {
      const mark = add(row, "svg", { width: 16, height: 8, class: "swatch" });
      add(mark, "line", { x1: 0, x2: 16, y1: 4, y2: 4, "stroke-width": 3, style: `stroke:${color}`, "stroke-dasharray": dash || null });
    }
    label.textContent = name;
    text.textContent = value;
    row.append(label, text);
    tooltip.append(row);
  }
  tooltip.hidden = false;
  const box = tooltip.getBoundingClientRect(), right = window.scrollX + document.documentElement.clientWidth;
  const x = pageX + 16 + box.width > right ? pageX - 16 - box.width : pageX + 16;
  tooltip.style.left = Math.max(window.scrollX + 4, x) + "px";
  tooltip.style.top = Math.max(window.scrollY + 4, pageY - box.height / 2) + "px";
}

function hideTooltip() { tooltip.hidden = true; }

// Show a tooltip while the pointer is over a shape.
function explain(shape, head, rows) {
  shape.addEventListener("pointermove", (event) => showTooltip(event.pageX, event.pageY, head, rows()));
  shape.addEventListener("pointerleave", hideTooltip);
}
