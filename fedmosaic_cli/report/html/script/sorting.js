// Column heads become buttons: the first click sorts, the second reverses, the third restores the original order.
function startSorting() {
  for (const table of document.querySelectorAll("table.sortable")) {
    const body = table.tBodies[0];
    const originalRows = [...body.rows];
    for (const head of table.querySelectorAll("th[data-sort]")) {
      const button = element("button", { type: "button" });
      button.append(...head.childNodes);
      head.append(button);
      head.setAttribute("aria-sort", "none");
      button.addEventListener("click", () => sortBy(table, head, originalRows));
    }
  }
}

function sortBy(table, head, originalRows) {
  const keyOf = (row, asNumber) => sortKey(row.cells[head.cellIndex], asNumber);
  const isNumber = head.dataset.sort === "number" && originalRows.some((row) => keyOf(row, true) !== null);
  const directions = isNumber ? ["none", "descending", "ascending"] : ["none", "ascending", "descending"];
  const direction = directions[(directions.indexOf(head.getAttribute("aria-sort")) + 1) % directions.length];
  for (const other of table.querySelectorAll("th[aria-sort]")) other.setAttribute("aria-sort", "none");
  head.setAttribute("aria-sort", direction);
  const sign = direction === "ascending" ? 1 : -1;
  const keys = new Map(originalRows.map((row) => [row, keyOf(row, isNumber)]));
  const order = (one, other) => {
    const [a, b] = [keys.get(one), keys.get(other)];
    if (a === null || b === null) return (a === null) - (b === null); // missing values are last in both directions
    return sign * (typeof a === "number" ? a - b : a.localeCompare(b, "en", { numeric: true }));
  };
  table.tBodies[0].append(...(direction === "none" ? originalRows : [...originalRows].sort(order)));
}

// The data-value of a cell, or else the first number in its text.
function sortKey(cell, asNumber) {
  if (!cell) return null;
  if (!asNumber) return cell.textContent.trim();
  const found = (cell.dataset.value ?? cell.textContent).replaceAll("\u2212", "-").match(/-?\d+(\.\d+)?(e[+-]?\d+)?/i);
  return found ? Number(found[0]) : null;
}
