// Column heads become buttons: a click sorts, the next turns the order round, the third goes back to the first order.
function startSorting() {
  for (const table of document.querySelectorAll("table.sortable")) {
    const body = table.tBodies[0];
    const first = [...body.rows];
    for (const head of table.querySelectorAll("th[data-sort]")) {
      const button = element("button", { type: "button" });
      button.append(...head.childNodes);
      head.append(button);
      head.setAttribute("aria-sort", "none");
      button.addEventListener("click", () => sortBy(table, head, first));
    }
  }
}

function sortBy(table, head, first) {
  const keyOf = (row, asNumber) => sortKey(row.cells[head.cellIndex], asNumber);
  const isNumber = head.dataset.sort === "number" && first.some((row) => keyOf(row, true) !== null);
  const ways = isNumber ? ["none", "descending", "ascending"] : ["none", "ascending", "descending"];
  const way = ways[(ways.indexOf(head.getAttribute("aria-sort")) + 1) % ways.length];
  for (const other of table.querySelectorAll("th[aria-sort]")) other.setAttribute("aria-sort", "none");
  head.setAttribute("aria-sort", way);
  const sign = way === "ascending" ? 1 : -1;
  const keys = new Map(first.map((row) => [row, keyOf(row, isNumber)]));
  const order = (one, other) => {
    const [a, b] = [keys.get(one), keys.get(other)];
    if (a === null || b === null) return (a === null) - (b === null); // what is missing comes last either way
    return sign * (typeof a === "number" ? a - b : a.localeCompare(b, "en", { numeric: true }));
  };
  table.tBodies[0].append(...(way === "none" ? first : [...first].sort(order)));
}

// The number that a cell was given, or else the first that stands in it.
function sortKey(cell, asNumber) {
  if (!cell) return null;
  if (!asNumber) return cell.textContent.trim();
  const found = (cell.dataset.value ?? cell.textContent).replaceAll("\u2212", "-").match(/-?\d+(\.\d+)?(e[+-]?\d+)?/i);
  return found ? Number(found[0]) : null;
}
