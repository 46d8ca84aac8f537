// Pictures (SVG, PNG) and numbers (CSV) of charts and tables, made in the page. A chart sets `source` of its ".savable"
// element to {title, picture, rows}: `picture` returns an SVG element, `rows` the cells of the CSV file.
const PICTURE_FONT = "system-ui, sans-serif";
const MAX_PICTURE_PIXELS = 16000;

function startSaving() {
  document.addEventListener("click", async (event) => {
    const button = event.target.closest("button[data-save]");
    if (!button) return;
    const block = button.closest(".savable");
    const heading = button.parentElement.dataset.title;
    const source = block.source?.() ?? domSource(block, heading);
    const name = `fedmosaic-${source.title}`.replace(/[^\p{L}\p{N}.]+/gu, "-").replace(/^-|-$/g, "").slice(0, 100);
    const format = button.dataset.save;
    if (format === "csv") return saveFile(new Blob([toCsv(source.rows())], { type: "text/csv" }), `${name}.csv`);
    const svg = source.picture();
    if (format === "svg") return saveFile(new Blob([svgText(svg)], { type: "image/svg+xml" }), `${name}.svg`);
    return saveFile(await toPng(svg), `${name}.png`);
  });
}

function domSource(block, title) {
  const [table, diagram] = [block.querySelector("table"), block.querySelector("figure svg")];
  return { title, rows: () => tableRows(table), picture: () => (table ? tablePicture(table, title) : styledCopy(diagram)) };
}

function saveFile(blob, name) {
  const link = element("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60000);
}

function svgText(svg) {
  const text = new XMLSerializer().serializeToString(svg);
  return text.replace(/[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]/g, "\ufffd"); // not allowed in XML
}

async function toPng(svg) {
  const [width, height] = ["width", "height"].map((side) => Number(svg.getAttribute(side)));
  const scale = Math.min(2, MAX_PICTURE_PIXELS / width, MAX_PICTURE_PIXELS / height);
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(svgText(svg))}`;
  await image.decode();
  const canvas = element("canvas", { width: Math.round(width * scale), height: Math.round(height * scale) });
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  const bytes = atob(canvas.toDataURL("image/png").split(",")[1]);
  return new Blob([Uint8Array.from(bytes, (byte) => byte.charCodeAt(0))], { type: "image/png" });
}

// An SVG element of this size on the background of the cards, with a title.
function emptyPicture(width, height, title) {
  const size = { width, height, viewBox: `0 0 ${width} ${height}`, "font-family": PICTURE_FONT };
  const ground = svgElement("rect", { width, height, fill: hexColour("var(--card)") });
  const head = { x: 12, y: 22, "font-size": 14, "font-weight": 600, fill: hexColour("var(--ink)") };
  return svgElement("svg", size, ground, svgElement("text", head, title));
}

// A copy of an SVG element that looks the same without the style sheet of the page.
function styledCopy(svg) {
  const copy = svg.cloneNode(true);
  const [from, to] = [svg, copy].map((root) => [root, ...root.querySelectorAll("*")]);
  from.forEach((node, number) => {
    const style = getComputedStyle(node);
    for (const name of ["fill", "stroke"]) {
      if (style[name].startsWith("rgb")) to[number].setAttribute(name, hexColour(style[name]));
      else if (style[name] === "none") to[number].setAttribute(name, "none");
    }
    for (const name of ["stroke-width", "stroke-dasharray", "stroke-linejoin", "opacity", "font-size"]) {
      to[number].setAttribute(name, style.getPropertyValue(name));
    }
    for (const name of ["class", "style", "tabindex", "role"]) to[number].removeAttribute(name);
  });
  const box = svg.getBoundingClientRect();
  copy.setAttribute("width", Math.round(box.width));
  copy.setAttribute("height", Math.round(box.height));
  return copy;
}

function hexColour(colour) {
  const pen = element("canvas", { width: 1, height: 1 }).getContext("2d");
  pen.fillStyle = colour.startsWith("var") ? resolvedColour(colour.slice(4, -1)) : colour;
  pen.fillRect(0, 0, 1, 1);
  const [red, green, blue, alpha] = pen.getImageData(0, 0, 1, 1).data;
  return alpha ? `#${[red, green, blue].map((part) => part.toString(16).padStart(2, "0")).join("")}` : "none";
}

function textWidth(text, size = 12) {
  const pen = element("canvas").getContext("2d");
  pen.font = `${size}px ${PICTURE_FONT}`;
  return pen.measureText(text).width;
}

// The cells of a table as they are on the screen: grounds, lines, words and bars.
function tablePicture(table, title) {
  const scroller = table.parentElement;
  const before = scroller.scrollLeft;
  scroller.scrollLeft = 0; // the first column stays in place while the others scroll
  const [margin, top, box] = [12, 36, table.getBoundingClientRect()];
  const svg = emptyPicture(Math.ceil(box.width) + 2 * margin, Math.ceil(box.height) + top + margin, title);
  const place = ({ left, top: upper, width, height }) => ({
    x: (left - box.left + margin).toFixed(1), y: (upper - box.top + top).toFixed(1),
    width: width.toFixed(1), height: height.toFixed(1),
  });
  for (const cell of table.querySelectorAll("th, td, .bar i")) {
    const at = place(cell.getBoundingClientRect());
    const ground = cell.classList.contains("hurt") ? hexColour("var(--worst)") : hexColour(getComputedStyle(cell).backgroundColor);
    if (ground !== "none") svg.append(svgElement("rect", { ...at, fill: ground }));
    const line = { x1: at.x, x2: Number(at.x) + Number(at.width), y1: at.y, y2: at.y, stroke: hexColour("var(--line)") };
    if (cell.localName !== "i") svg.append(svgElement("line", line));
  }
  for (const { word, style, rect } of wordsOf(table)) {
    const { x, y, width, height } = place(rect);
    const baseline = (Number(y) + 0.78 * Number(height)).toFixed(1);
    const look = { "font-size": style.fontSize, "font-weight": style.fontWeight, fill: hexColour(style.color) };
    svg.append(svgElement("text", { x, y: baseline, textLength: width, ...look }, word));
  }
  scroller.scrollLeft = before;
  return svg;
}

function wordsOf(root) {
  const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
  const range = document.createRange();
  const words = [];
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    for (const { 0: word, index } of node.data.matchAll(/\S+/g)) {
      range.setStart(node, index);
      range.setEnd(node, index + word.length);
      const rect = range.getBoundingClientRect();
      if (rect.width) words.push({ word, style: getComputedStyle(node.parentElement), rect });
    }
  }
  return words;
}

// The cells of a table. A column with deviations becomes two; bars are left out, their numbers are in other columns.
function tableRows(table) {
  const expand = (row) => [...row.cells].flatMap((cell) => [cell, ...Array(cell.colSpan - 1).fill(null)]);
  const [heads, ...groups] = [...table.tHead.rows].reverse().map(expand);
  const body = [...table.tBodies[0].rows].map(expand);
  const columns = [...heads.keys()].filter((at) => !body.some((row) => row[at]?.classList.contains("barcell")));
  const deviates = (at) => body.some((row) => row[at]?.dataset.deviation);
  const heading = (at) => groups.map((row) => row.slice(0, at + 1).findLast(Boolean)?.textContent).filter(Boolean);
  const name = (at) => [...heading(at), heads[at].textContent].join(": ").trim();
  return [
    columns.flatMap((at) => (deviates(at) ? [name(at), `${name(at)} standard deviation`] : [name(at)])),
    ...body.map((row) => columns.flatMap((at) => {
      const text = cellText(row[at]);
      return deviates(at) ? [text, row[at]?.dataset.deviation ?? ""] : [text];
    })),
  ];
}

function cellText(cell) {
  if (!cell || cell.querySelector(".missing")) return "";
  const text = cell.dataset.value ?? (cell.localName === "th" ? cell.firstChild : cell).textContent.trim();
  return text === "-" || text === "\u2013" ? "" : text.replace(/^\u2212(?=\d)/, "-");
}

function toCsv(rows) {
  return rows.map((row) => `${row.map(csvCell).join(",")}\n`).join("");
}

// Text that a spreadsheet would read as a formula starts with an apostrophe.
function csvCell(value) {
  const text = String(value ?? "");
  const isFormula = /^(\s*[=+\-@\uff1d\uff0b\uff0d\uff20].|[\t\r].)/s.test(text) && !Number.isFinite(Number(text));
  const safe = isFormula ? `'${text}` : text;
  return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}
