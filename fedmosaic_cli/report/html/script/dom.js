"use strict";
const numbers = JSON.parse(document.getElementById("numbers").textContent);

function byId(id) {
  return document.getElementById(id);
}

// Children are added as text nodes, never as HTML, so that names cannot create elements.
function element(name, attributes = {}, ...children) {
  return withContent(document.createElement(name), attributes, children);
}

function svgElement(name, attributes = {}, ...children) {
  return withContent(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);
}

function withContent(node, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

function fillSelect(select, entries, wanted) {
  const shown = entries.map(({ value, text, off }) => {
    const option = element("option", { value }, text);
    option.disabled = Boolean(off);
    return option;
  });
  select.replaceChildren(...shown);
  const possible = entries.filter((entry) => !entry.off).map((entry) => String(entry.value));
  select.value = possible.includes(String(wanted)) ? String(wanted) : possible[0] ?? "";
}

function lineStyle(client) {
  return numbers.clientStyles[client % numbers.clientStyles.length];
}

function strokeOf({ color }) {
  return `--stroke: ${color}`;
}

function swatch(style) {
  const line = svgElement("line", { x1: 0, y1: 5, x2: 26, y2: 5, "stroke-dasharray": style.dash });
  const picture = svgElement("svg", { style: strokeOf(style), viewBox: "0 0 26 10", "aria-hidden": "true" }, line);
  picture.append(...marker(style.marker, 13, 5));
  return picture;
}

// Buttons that select several entries, and one chip per entry. `entries` are {name, style, group}, `picked` is a set of
// indices.
function chips(container, entries, groups, picked, changed) {
  const set = (wanted) => {
    picked.clear();
    entries.forEach((entry, number) => wanted(entry, number) && picked.add(number));
    show();
    changed();
  };
  const pieces = entries.map((entry, number) => {
    const chip = element("button", { type: "button", class: "chip" }, swatch(entry.style), entry.name);
    chip.addEventListener("click", () => {
      if (!picked.delete(number)) picked.add(number);
      show();
      changed();
    });
    return chip;
  });
  const show = () => pieces.forEach((chip, number) => chip.setAttribute("aria-pressed", String(picked.has(number))));
  const every = [["All", () => true], ["None", () => false]];
  const named = groups.map((group) => [group, (entry) => entry.group === group]);
  const buttons = [...every, ...named].map(([text, wanted]) => {
    const button = element("button", { type: "button", class: "quiet" }, text);
    button.addEventListener("click", () => set(wanted));
    return button;
  });
  const rows = [element("div", { class: "row" }, ...buttons), element("div", { class: "row chips" }, ...pieces)];
  container.replaceChildren(...rows);
  show();
}

function formatNumber(value) {
  return String(Number(value.toPrecision(4)));
}

function formatPercent(value) {
  return `${(100 * value).toFixed(2)}%`;
}

function mean(values) {
  return values.reduce((sum, value) => sum + value, 0) / values.length;
}

function resolvedColour(name) {
  return themeColour(`var(${name})`);
}

// A CSS colour, which may differ between light and dark pages, as `rgb(...)`.
function themeColour(colour) {
  const probe = element("span", { style: `color: ${colour}` });
  document.body.append(probe);
  const resolved = getComputedStyle(probe).color;
  probe.remove();
  return resolved;
}
