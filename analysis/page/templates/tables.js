"use strict";
// Sorting, filtering and pinned columns. Without this script the tables are complete and plain.

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
    if (header.classList.contains("picture")) continue;
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
  table.closest(".table").querySelector(".tools").prepend(label, count);
}

// The columns that name a row stay at the left: as many of the last ones as leave 40 % of the box to numbers.
function pin(table) {
  const keys = Array.from(table.tHead.rows[0].cells).filter((cell) => cell.classList.contains("key"));
  const widths = keys.map((key) => key.getBoundingClientRect().width);
  const left = widths.map((_, place) => widths.slice(0, place).reduce((sum, width) => sum + width, 0));
  const end = left.at(-1) + widths.at(-1);
  const start = left.find((edge) => end - edge <= table.parentElement.clientWidth * 0.6) ?? left.at(-1);
  for (const row of table.rows) keys.forEach((key, place) => { row.cells[place].style.left = `${left[place] - start}px`; });
}

for (const table of document.querySelectorAll("table[id^='data-']")) {
  addSorting(table);
  addFilter(table);
  new ResizeObserver(() => pin(table)).observe(table);
}
