// Charts as SVG or PNG files and tables as CSV files, made in the browser.

const KEPT = ["fill", "fill-opacity", "stroke", "stroke-width", "stroke-dasharray", "stroke-opacity", "font-size", "font-weight", "font-family", "text-anchor"];

function download(name, blob) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 5000);
}

// A copy whose colors and fonts don't depend on this page's style sheet.
function standalone(svg) {
  const copy = svg.cloneNode(true);
  const from = [svg, ...svg.querySelectorAll("*")], to = [copy, ...copy.querySelectorAll("*")];
  from.forEach((one, place) => {
    const style = getComputedStyle(one);
    to[place].removeAttribute("class");
    to[place].setAttribute("style", KEPT.map((key) => `${key}:${style.getPropertyValue(key)}`).join(";"));
  });
  return copy;
}

// All panels of a figure as they stand, below its title, above the runs that its lines are.
function wholeFigure(figure, runs) {
  const plots = [...figure.querySelectorAll(".plots svg")], area = figure.querySelector(".plots").getBoundingClientRect();
  const width = Math.ceil(area.width) + 32, title = figure.querySelector("h2").textContent;
  const style = getComputedStyle(document.body);
  const whole = element("svg", { width });
  add(whole, "rect", { width: "100%", height: "100%", fill: getComputedStyle(figure).backgroundColor });
  add(whole, "text", { x: 16, y: 28, style: `fill:${style.color};font:600 16px ${style.fontFamily}` }, title);
  for (const plot of plots) {
    const box = plot.getBoundingClientRect(), copy = standalone(plot);
    copy.setAttribute("x", 16 + box.left - area.left);
    copy.setAttribute("y", 44 + box.top - area.top);
    whole.append(copy);
  }
  let height = 60 + area.height;
  if (runs.length) {
    const legend = figure.querySelector(".plots").appendChild(element("svg", { width: area.width, height: 10 }));
    const needed = addLegend(legend, runs, 0, area.width), copy = standalone(legend);
    legend.remove();
    copy.setAttribute("x", 16);
    copy.setAttribute("y", height - 6);
    copy.setAttribute("height", needed);
    whole.append(copy);
    height += needed;
  }
  whole.setAttribute("height", Math.ceil(height));
  whole.setAttribute("viewBox", `0 0 ${width} ${Math.ceil(height)}`);
  return whole;
}

function saveFigure(figure, kind, runs) {
  const whole = wholeFigure(figure, runs), name = "hpcgnn-" + figure.dataset.chart;
  const blob = new Blob([new XMLSerializer().serializeToString(whole)], { type: "image/svg+xml" });
  if (kind === "svg") return download(name + ".svg", blob);
  const image = new Image(), url = URL.createObjectURL(blob);
  image.onload = () => {
    const canvas = document.createElement("canvas");
    canvas.width = 2 * whole.getAttribute("width");
    canvas.height = 2 * whole.getAttribute("height");
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    URL.revokeObjectURL(url);
    canvas.toBlob((png) => download(name + ".png", png));
  };
  image.src = url;
}

// Visible rows in the order of the page; numbers as they were measured, not as they are shown.
function csvOf(table) {
  const quoted = (text) => `"${text.replaceAll('"', '""')}"`;
  const lines = [...table.rows].filter((row) => !row.hidden).map((row) => [...row.cells].map((cell) =>
    quoted(cell.dataset.value !== undefined ? cell.dataset.value : cell.textContent.trim())).join(","));
  return lines.join("\r\n") + "\r\n";
}
