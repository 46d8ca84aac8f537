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
  const ways = head.dataset.sort === "number" ? ["none", "descending", "ascending"] : ["none", "ascending", "descending"];
  const way = ways[(ways.indexOf(head.getAttribute("aria-sort")) + 1) % ways.length];
  for (const other of table.querySelectorAll("th[aria-sort]")) other.setAttribute("aria-sort", "none");
  head.setAttribute("aria-sort", way);
  const sign = way === "ascending" ? 1 : -1;
  const keys = new Map(first.map((row) => [row, sortKey(row.cells[head.cellIndex], head.dataset.sort)]));
  const order = (one, other) => {
    const [a, b] = [keys.get(one), keys.get(other)];
    if (a === null || b === null) return (a === null) - (b === null); // what is missing comes last either way
    return sign * (typeof a === "number" ? a - b : a.localeCompare(b, "en", { numeric: true }));
  };
  table.tBodies[0].append(...(way === "none" ? first : [...first].sort(order)));
}

function sortKey(cell, kind) {
  if (!cell) return null;
  if (kind !== "number") return cell.textContent.trim();
  const text = cell.dataset.value ?? cell.textContent.replace("\u2212", "-").replace(/[^0-9.eE+-].*$/s, "");
  const value = text.trim() === "" ? NaN : Number(text);
  return Number.isNaN(value) ? null : value;
}
