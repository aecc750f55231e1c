"use strict";
// Sorting and filtering. Without this script the tables are complete and plain.

// A cell that holds no number is last, whichever way a column of numbers is sorted.
function compare(direction, areNumbers) {
  if (!areNumbers) return (a, b) => direction * a.textContent.localeCompare(b.textContent, "en", { numeric: true });
  return (a, b) => {
    const [first, second] = [parseFloat(a.dataset.value), parseFloat(b.dataset.value)];
    if (isNaN(first) || isNaN(second)) return isNaN(first) - isNaN(second);
    return direction * (first - second);
  };
}

function sortBy(table, header) {
  const direction = header.getAttribute("aria-sort") === "ascending" ? -1 : 1;
  const cells = Array.from(table.tBodies[0].rows, (row) => row.cells[header.cellIndex]);
  cells.sort(compare(direction, cells.some((cell) => cell.dataset.value)));
  table.tBodies[0].append(...cells.map((cell) => cell.parentElement));
  for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
  header.setAttribute("aria-sort", direction === 1 ? "ascending" : "descending");
}

function addSorting(table) {
  for (const header of table.tHead.rows[0].cells) {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...header.childNodes);
    button.addEventListener("click", () => sortBy(table, header));
    header.append(button);
  }
}

// A row is shown if every word occurs in it.
function addFilter(table) {
  const rows = Array.from(table.tBodies[0].rows);
  if (rows.length < 6) return;
  const label = document.createElement("label");
  const input = document.createElement("input");
  const count = document.createElement("output");
  input.type = "search";
  input.placeholder = "a word, or several";
  label.append("Filter rows ", input);
  const filter = () => {
    const words = input.value.toLowerCase().split(/\s+/);
    for (const row of rows) {
      const text = Array.from(row.cells, (cell) => cell.textContent).join(" ").toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
    }
    count.textContent = `${rows.filter((row) => !row.hidden).length} of ${rows.length} rows`;
  };
  input.addEventListener("input", filter);
  filter();
  table.closest(".table").querySelector(".tools").prepend(label, count);
}

for (const table of document.querySelectorAll("table[id^='data-']")) {
  addSorting(table);
  addFilter(table);
}
