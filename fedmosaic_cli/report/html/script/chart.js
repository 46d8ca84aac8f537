// A line chart in SVG. `series` are {name, style, weight, points: [[x, y or null]], band: [[x, low, high]]}; later series
// are drawn on top. `describe(series, point)` returns the text for the point selected by mouse, touch or arrow keys.
// The y axis fits the values, is not above `top`, and always includes the values in `alwaysShown`.
const ARROWS = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
const MARGIN = { left: 58, right: 14, top: 34, bottom: 38 };
const MARKERS_PER_LINE = 6;
// Paths around the origin, by the names of matplotlib.
const MARKER_PATHS = {
  o: "M-3.5 0a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0 -7 0z", s: "M-3.2-3.2h6.4v6.4h-6.4z", D: "M0-4.4L4.4 0L0 4.4L-4.4 0z",
  d: "M0-4.6L2.8 0L0 4.6L-2.8 0z", "^": "M0-4L4 3.4H-4z", v: "M0 4L4-3.4H-4z", "<": "M-4 0L3.4-4V4z",
  ">": "M4 0L-3.4-4V4z", P: "M-1.4-4.2h2.8v2.8h2.8v2.8h-2.8v2.8h-2.8v-2.8h-2.8v-2.8h2.8z",
  X: "M-2-4L0-2L2-4L4-2L2 0L4 2L2 4L0 2L-2 4L-4 2L-2 0L-4-2z", p: "M0-4.2L4-1.3L2.5 3.4H-2.5L-4-1.3z",
  "*": "M0-5L1.2-1.6H4.8L1.9.6L3 4.1L0 2L-3 4.1L-1.9.6L-4.8-1.6H-1.2z",
};

function lineChart(container, label) {
  const chart = { container, series: [], selected: null, describe: () => "", formatTick: formatNumber };
  const role = { role: "application", "aria-roledescription": "line chart", "aria-label": label };
  chart.svg = svgElement("svg", { tabindex: "0", ...role });
  chart.tip = element("div", { class: "tip", "aria-hidden": "true" });
  chart.output = element("output", { class: "status" });
  chart.tip.hidden = true;
  container.append(chart.svg, chart.tip, chart.output);
  chart.svg.addEventListener("pointermove", (event) => select(chart, nearest(chart, event)));
  chart.svg.addEventListener("pointerdown", (event) => select(chart, nearest(chart, event)));
  chart.svg.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && select(chart, null));
  chart.svg.addEventListener("keydown", (event) => moveSelection(chart, event));
  chart.svg.addEventListener("blur", () => select(chart, null));
  container.closest(".savable").source = () => ({
    title: chart.title, picture: () => chartPicture(chart), rows: () => chartRows(chart),
  });
  new ResizeObserver(() => chart.width !== container.clientWidth && drawChart(chart)).observe(container);
  return chart;
}

function showChart(chart, { series, isLog, ...options }) {
  const positive = (value) => (isLog && value !== null && value <= 0 ? null : value);
  const shown = series.map((line) => ({ ...line, points: line.points.map(([x, y]) => [x, positive(y)]) }));
  const values = series.flatMap((line) => line.points.map((point) => point[1]));
  const numHidden = isLog ? values.filter((value) => value !== null && value <= 0).length : 0;
  Object.assign(chart, { isLog, numHidden, ...options, series: shown, selected: null });
  drawChart(chart);
}

function drawChart(chart) {
  const width = Math.max(chart.container.clientWidth, 240);
  const height = width < 560 ? 270 : 360;
  chart.width = chart.container.clientWidth;
  chart.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  chart.svg.setAttribute("height", height);
  chart.svg.classList.remove("pointed");
  chart.tip.hidden = true;
  const drawnPoints = chart.series.flatMap((line) => [...line.points, ...(line.band ?? [])]);
  const numbersOnly = drawnPoints.flatMap((point) => point.slice(1)).filter((y) => y !== null);
  if (!numbersOnly.length) {
    chart.scale = null;
    chart.svg.replaceChildren(svgElement("text", { x: width / 2, y: height / 2, "text-anchor": "middle" }, chart.empty));
    chart.output.textContent = chart.empty;
    return;
  }
  chart.scale = computeScale(chart, numbersOnly, width, height);
  chart.lines = svgElement("g");
  chart.overlay = svgElement("g");
  chart.svg.replaceChildren(...axes(chart, width, height), chart.lines, chart.overlay);
  chart.series.forEach((line, number) => chart.lines.append(...band(chart, line, number)));
  chart.series.forEach((line, number) => chart.lines.append(...linePath(chart, line, number)));
  const hidden = chart.numHidden ? ` Values of 0 or less are not on the log scale: ${chart.numHidden}.` : "";
  chart.output.textContent = `Point at a line or use the arrow keys to read its values.${hidden}`;
}

function computeScale(chart, ys, width, height) {
  const xs = chart.series.flatMap((line) => line.points.map((point) => point[0]));
  const shown = [...ys, ...(chart.alwaysShown ?? [])];
  const [low, high] = [smallest(shown), largest(shown)];
  const ticks = chart.isLog ? logTicks(low, high) : linearTicks(low, high, chart.top, height < 300 ? 4 : 6);
  const [bottom, top] = [ticks[0], ticks.at(-1)];
  const [left, right] = [smallest(xs), largest(xs)];
  const inner = { width: width - MARGIN.left - MARGIN.right, height: height - MARGIN.top - MARGIN.bottom };
  const share = (value) => (chart.isLog ? Math.log(value / bottom) / Math.log(top / bottom) : (value - bottom) / (top - bottom));
  return {
    ticks, bottom, top, left, right,
    x: (value) => MARGIN.left + (right === left ? 0.5 : (value - left) / (right - left)) * inner.width,
    y: (value) => MARGIN.top + (1 - share(value)) * inner.height,
  };
}

function linearTicks(low, high, limit, about) {
  // Means of equal values may differ by rounding errors, which must not determine the step.
  if (high - low <= 1e-9 * high) [low, high] = [0.95 * low, Math.min(1.05 * high || 0.05, limit ?? Infinity)];
  const step = niceStep(high - low, about);
  const [first, last] = [Math.floor(low / step + 1e-9), Math.ceil(high / step - 1e-9)];
  return Array.from({ length: last - first + 1 }, (_, number) => (first + number) * step);
}

// Powers of ten, with ticks between them if the values span few of them.
function logTicks(low, high) {
  if (high <= low) [low, high] = [low / 2, high * 2];
  const decades = Math.log10(high / low);
  const factors = decades > 2.5 ? [1] : decades > 0.8 ? [1, 2, 5] : [1, 2, 3, 4, 5, 6, 7, 8, 9];
  const every = Math.max(1, Math.ceil(decades / 8));
  const ticks = [];
  for (let power = Math.floor(Math.log10(low)); ticks.length < 2 || ticks.at(-1) < high; power += every) {
    for (const factor of factors) {
      const tick = Number(`${factor}e${power}`);
      if (tick <= low) ticks.length = 0;
      if (!ticks.length || ticks.at(-1) < high) ticks.push(tick);
    }
  }
  return ticks;
}

function smallest(values) {
  return values.reduce((least, value) => Math.min(least, value), Infinity);
}

function largest(values) {
  return values.reduce((most, value) => Math.max(most, value), -Infinity);
}

function niceStep(span, about) {
  const raw = span / about;
  const power = 10 ** Math.floor(Math.log10(raw));
  return [1, 2, 2.5, 5, 10].find((factor) => factor * power >= raw * 0.999) * power;
}

function axes(chart, width, height) {
  const { scale } = chart;
  const pieces = [];
  const labels = tickLabels(chart);
  scale.ticks.forEach((tick, number) => {
    const y = scale.y(tick);
    pieces.push(svgElement("line", { class: "grid", x1: MARGIN.left, x2: width - MARGIN.right, y1: y, y2: y }));
    pieces.push(svgElement("text", { x: MARGIN.left - 8, y: y + 4, "text-anchor": "end" }, labels[number]));
  });
  pieces.push(svgElement("text", { x: 4, y: 16 }, axisTitle(chart, labels)));
  const step = Math.max(1, Math.round(niceStep(Math.max(scale.right - scale.left, 1), width < 560 ? 5 : 10)));
  const ticks = [scale.left];
  const second = Math.ceil((scale.left + step * 0.6) / step) * step;
  for (let tick = second; tick <= scale.right; tick += step) ticks.push(tick);
  const base = height - MARGIN.bottom;
  for (const tick of ticks) {
    pieces.push(svgElement("line", { class: "axis", x1: scale.x(tick), x2: scale.x(tick), y1: base, y2: base + 4 }));
    pieces.push(svgElement("text", { x: scale.x(tick), y: base + 18, "text-anchor": "middle" }, String(tick)));
  }
  pieces.push(svgElement("line", { class: "axis", x1: MARGIN.left, x2: width - MARGIN.right, y1: base, y2: base }));
  pieces.push(svgElement("text", { x: (MARGIN.left + width) / 2, y: height - 4, "text-anchor": "middle" }, "round"));
  return pieces;
}

function tickLabels({ scale: { ticks }, isLog, formatTick }) {
  return ticks.map((tick) => formatTick(tick, isLog ? tick : ticks[1] - ticks[0]));
}

// Says so if the axis does not begin at zero.
function axisTitle({ scale, isLog, metric }, labels) {
  if (isLog) return `${metric} (log scale)`;
  return scale.bottom === 0 ? metric : `${metric} (axis from ${labels[0]} to ${labels.at(-1)})`;
}

function band({ scale: { x, y } }, line, number) {
  if (!(line.band?.length > 1)) return [];
  const upper = line.band.map(([round, , high]) => `${x(round).toFixed(1)},${y(high).toFixed(1)}`);
  const lower = line.band.map(([round, low]) => `${x(round).toFixed(1)},${y(low).toFixed(1)}`).reverse();
  const shape = { class: "band", style: strokeOf(line.style), points: [...upper, ...lower].join(" ") };
  return [svgElement("polygon", { ...shape, "data-series": number })];
}

function linePath(chart, line, number) {
  const { x, y } = chart.scale;
  const look = { style: strokeOf(line.style), "data-series": number };
  const shape = { class: `series ${line.weight ?? ""}`, "stroke-dasharray": line.style.dash, ...look };
  const pieces = [svgElement("path", { ...shape, d: pathData(line.points, chart.scale) })];
  const every = Math.max(1, Math.floor(line.points.length / MARKERS_PER_LINE));
  line.points.forEach(([round, value], at) => {
    if (value === null) return;
    const isGap = (number) => (line.points[number]?.[1] ?? null) === null;
    const isAlone = isGap(at - 1) && isGap(at + 1);
    if (!isAlone && (!line.style.marker || at % every)) return;
    for (const piece of marker(line.style.marker || "o", x(round), y(value))) {
      pieces.push(withContent(piece, look, []));
    }
  });
  return pieces;
}

function marker(name, x, y) {
  const path = MARKER_PATHS[name];
  return path ? [svgElement("path", { class: "dot", d: path, transform: `translate(${x.toFixed(1)} ${y.toFixed(1)})` })] : [];
}

// The line has a gap at missing values.
function pathData(points, { x, y }) {
  let pen = "M";
  return points.map(([round, value]) => {
    if (value === null) {
      pen = "M";
      return "";
    }
    const piece = `${pen}${x(round).toFixed(1)} ${y(value).toFixed(1)}`;
    pen = "L";
    return piece;
  }).join("");
}

function nearest(chart, event) {
  if (!chart.scale) return null;
  const box = chart.svg.getBoundingClientRect();
  const [px, py] = [event.clientX - box.left, event.clientY - box.top];
  let best = null;
  let least = Infinity;
  chart.series.forEach((line, series) => line.points.forEach(([round, value], point) => {
    if (value === null) return;
    // Horizontal distance has double weight, so that the point nearest in x is preferred.
    const away = Math.hypot(2 * (chart.scale.x(round) - px), chart.scale.y(value) - py);
    if (away < least) [least, best] = [away, { series, point }];
  }));
  return best;
}

function select(chart, selected) {
  chart.selected = selected;
  if (!chart.scale) return;
  chart.svg.classList.toggle("pointed", selected !== null);
  chart.tip.hidden = selected === null;
  chart.overlay.replaceChildren();
  for (const shape of chart.lines.children) {
    shape.classList.toggle("chosen", shape.dataset.series === String(selected?.series));
  }
  if (!selected) return;
  const line = chart.series[selected.series];
  const [round, value] = line.points[selected.point];
  const [x, y] = [chart.scale.x(round), chart.scale.y(value)];
  chart.overlay.append(
    svgElement("line", { class: "guide", x1: x, x2: x, y1: MARGIN.top, y2: chart.scale.y(chart.scale.bottom) }),
    svgElement("circle", { class: "ring", style: strokeOf(line.style), cx: x, cy: y, r: 5 }),
  );
  const text = chart.describe(line, line.points[selected.point], selected.point);
  chart.output.textContent = chart.tip.textContent = text + coincidingLines(chart, line, round, value);
  const toLeft = x > chart.svg.clientWidth / 2;
  chart.tip.style.left = toLeft ? "auto" : `${x + 12}px`;
  chart.tip.style.right = toLeft ? `${chart.svg.clientWidth - x + 12}px` : "auto";
  chart.tip.style.top = `${Math.max(0, y - 34)}px`;
}

// Coinciding lines cannot be selected separately, so the others are named too.
function coincidingLines(chart, line, round, value) {
  const same = chart.series.filter((other) => other !== line
    && other.points.some(([x, y]) => x === round && y === value));
  if (!same.length) return "";
  return `; also ${same.length > 3 ? `${same.length} others` : same.map((other) => other.name).join(", ")}`;
}

function moveSelection(chart, event) {
  if (!chart.scale) return;
  if (event.key === "Escape") return select(chart, null);
  const step = { ...ARROWS, Home: [0, -Infinity], End: [0, Infinity] }[event.key];
  if (!step) return;
  event.preventDefault();
  const count = chart.series.length;
  const from = chart.selected ?? { series: 0, point: 0 };
  const series = chart.selected ? (from.series + step[0] + count) % count : 0;
  const known = chart.series[series].points.flatMap((point, number) => (point[1] === null ? [] : [number]));
  if (!known.length) return;
  const at = known.findIndex((number) => number >= from.point);
  const index = (at < 0 ? known.length - 1 : at) + (chart.selected ? step[1] : 0);
  select(chart, { series, point: known[Math.min(known.length - 1, Math.max(0, index))] });
}

// The chart with a title and the names of its lines.
function chartPicture(chart) {
  select(chart, null);
  const [, , width, height] = chart.svg.getAttribute("viewBox").split(" ").map(Number);
  const places = [];
  let [x, y] = [16, 0];
  for (const { name } of chart.series) {
    const space = textWidth(name) + 56;
    if (x > 16 && x + space > width) [x, y] = [16, y + 20];
    places.push([x, y]);
    x += space;
  }
  const picture = emptyPicture(width, height + 36 + (places.length ? y + 28 : 0), chart.title);
  const copy = styledCopy(chart.svg);
  copy.setAttribute("y", 32);
  picture.append(copy);
  chart.series.forEach(({ name, style }, number) => {
    const [left, down] = places[number];
    const at = { x1: left, x2: left + 26, y1: height + 46 + down, y2: height + 46 + down };
    const colour = hexColour(themeColour(style.color));
    picture.append(svgElement("line", { ...at, stroke: colour, "stroke-width": 2, "stroke-dasharray": style.dash }));
    for (const piece of marker(style.marker, left + 13, at.y1)) {
      piece.removeAttribute("class"); // of the style sheet
      picture.append(withContent(piece, { fill: colour }, []));
    }
    const text = { x: left + 33, y: at.y1 + 4, "font-size": 12, fill: hexColour("var(--ink)") };
    picture.append(svgElement("text", text, name));
  });
  return picture;
}

function chartRows(chart) {
  const hasBand = chart.series.some((line) => line.band?.length);
  const rows = chart.series.flatMap((line) => line.points.map(([round, value], at) => {
    const [low, high] = (line.band?.[at] ?? []).slice(1);
    return [line.name, round, value, ...(hasBand ? [low, high] : [])];
  }));
  return [["series", "round", chart.metric, ...(hasBand ? ["lowest seed", "highest seed"] : [])], ...rows];
}
