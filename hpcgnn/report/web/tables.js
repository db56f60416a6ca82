// Tables that sort by a click on a heading, filter by words, and compare with a baseline.

function compareCells(a, b) {
  const [left, right] = [a.dataset.value, b.dataset.value];
  if (left === undefined || right === undefined) return (left === undefined) - (right === undefined);
  const numbers = [Number(left), Number(right)];
  if (left !== "" && right !== "" && !numbers.some(Number.isNaN)) return numbers[0] - numbers[1];
  return left.localeCompare(right, "en", { numeric: true });
}

function sortTable(table, column) {
  const heading = table.tHead.rows[0].cells[column];
  const direction = heading.getAttribute("aria-sort") === "ascending" ? "descending" : "ascending";
  for (const other of table.tHead.rows[0].cells) other.setAttribute("aria-sort", "none");
  heading.setAttribute("aria-sort", direction);
  const rows = [...table.tBodies[0].rows];
  rows.sort((a, b) => {
    const [left, right] = [a.cells[column], b.cells[column]];
    const isKnown = left.dataset.value !== undefined && right.dataset.value !== undefined;
    const order = compareCells(left, right);      // what is unknown comes last in both directions
    return (direction === "descending" && isKnown ? -order : order) || a.dataset.run - b.dataset.run;
  });
  table.tBodies[0].append(...rows);
}

function showDifferences(differences, baseline) {
  for (const cell of document.querySelectorAll("[data-difference]")) {
    const found = differences[baseline][cell.closest("tr").dataset.run][cell.dataset.difference];
    cell.textContent = found.text;
    cell.classList.remove("better", "worse");
    if (found.verdict) cell.classList.add(found.verdict);
    if (found.value === null) delete cell.dataset.value; else cell.dataset.value = found.value;
  }
}

// Numbers of the runs whose rows, in any table, hold all the words.
function matching(words, count) {
  const texts = Array.from({ length: count }, () => "");
  for (const row of document.querySelectorAll("tr[data-run]")) {
    texts[row.dataset.run] += " " + [...row.cells].map((cell) => cell.textContent).join(" ").toLowerCase();
  }
  return new Set(texts.flatMap((text, run) => words.every((word) => text.includes(word)) ? [run] : []));
}
