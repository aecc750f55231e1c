"use strict";
// Sorting and filtering. Without this script the tables are complete and plain.

// A cell that holds no number is last, whichever way a column of numbers is sorted.
function numberIn(text) {
  return parseFloat(text.replace(/,/g, ""));
}

function compare(kind, direction) {
  if (kind === "text") return (a, b) => direction * a.localeCompare(b, "en", { numeric: true });
  return (a, b) => {
    const [first, second] = [numberIn(a), numberIn(b)];
    if (isNaN(first) || isNaN(second)) return isNaN(first) - isNaN(second);
    return direction * (first - second);
  };
}

function sortBy(table, header) {
  const direction = header.getAttribute("aria-sort") === "ascending" ? -1 : 1;
  const inOrder = compare(header.dataset.sort, direction);
  const body = table.tBodies[0];
  const rows = Array.from(body.rows, (row) => [row.cells[header.cellIndex].textContent.trim(), row]);
  rows.sort(([a], [b]) => inOrder(a, b));
  body.append(...rows.map(([, row]) => row));
  for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
  header.setAttribute("aria-sort", direction === 1 ? "ascending" : "descending");
}

function addSorting(table) {
  for (const header of table.tHead.rows[0].cells) {
    if (!header.dataset.sort) continue;
    const button = document.createElement("button");
    button.type = "button";
    button.append(...header.childNodes);
    button.addEventListener("click", () => sortBy(table, header));
    header.append(button);
  }
}

// Every word must occur in a row.
function filterBy(table, words) {
  let shown = 0;
  for (const row of table.tBodies[0].rows) {
    const text = Array.from(row.cells, (cell) => cell.textContent).join(" ").toLowerCase();
    row.hidden = !words.every((word) => text.includes(word));
    shown += row.hidden ? 0 : 1;
  }
  return shown;
}

function addFilter(table) {
  const total = table.tBodies[0].rows.length;
  if (total < 6) return;
  const label = document.createElement("label");
  const input = document.createElement("input");
  const count = document.createElement("output");
  input.type = "search";
  input.placeholder = "a word, or several";
  label.append("Filter rows ", input);
  const tell = (shown) => { count.textContent = `${shown} of ${total} rows`; };
  input.addEventListener("input", () => {
    tell(filterBy(table, input.value.toLowerCase().split(/\s+/).filter(Boolean)));
  });
  tell(total);
  const bar = document.createElement("div");
  bar.className = "filter";
  bar.append(label, count);
  table.closest(".table").prepend(bar);
}

for (const table of document.querySelectorAll("table[id^='data-']")) {
  addSorting(table);
  addFilter(table);
}
