// A line chart in SVG. `series` are {name, style, weight, points: [[x, y or null]], band: [[x, low, high]]}; later series
// are drawn on top. `describe(series, point)` returns the text for the point selected by mouse, touch or arrow keys.
// Values are between 0 and `top`; the y axis always includes the values in `alwaysShown`.
const ARROWS = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
const MARGIN = { left: 58, right: 14, top: 12, bottom: 38 };

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
  new ResizeObserver(() => chart.width !== container.clientWidth && drawChart(chart)).observe(container);
  return chart;
}

function showChart(chart, { series, describe, formatTick, top, alwaysShown, empty }) {
  Object.assign(chart, { series, describe, formatTick, top, alwaysShown, empty, selected: null });
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
  chart.output.textContent = "Point at a line or use the arrow keys to read its values.";
}

function computeScale(chart, ys, width, height) {
  const xs = chart.series.flatMap((line) => line.points.map((point) => point[0]));
  const shown = [...ys, ...(chart.alwaysShown ?? [])];
  let [low, high] = [smallest(shown), largest(shown)];
  if (low < 0.35 * high) low = 0;
  // Means of equal values may differ by rounding errors, which must not determine the step.
  if (high - low <= 1e-9 * high) [low, high] = [0.95 * low, Math.min(1.05 * high || 0.05, chart.top ?? Infinity)];
  const step = niceStep(high - low, height < 300 ? 4 : 6);
  const [bottom, top] = [Math.floor(low / step + 1e-9) * step, Math.ceil(high / step - 1e-9) * step];
  const [left, right] = [smallest(xs), largest(xs)];
  const inner = { width: width - MARGIN.left - MARGIN.right, height: height - MARGIN.top - MARGIN.bottom };
  return {
    step, bottom, top, left, right,
    x: (value) => MARGIN.left + (right === left ? 0.5 : (value - left) / (right - left)) * inner.width,
    y: (value) => MARGIN.top + (1 - (value - bottom) / (top - bottom)) * inner.height,
  };
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
  for (let tick = scale.bottom; tick <= scale.top + scale.step * 1e-6; tick += scale.step) {
    const y = scale.y(tick);
    pieces.push(svgElement("line", { class: "grid", x1: MARGIN.left, x2: width - MARGIN.right, y1: y, y2: y }));
    const label = chart.formatTick(tick, scale.step);
    pieces.push(svgElement("text", { x: MARGIN.left - 8, y: y + 4, "text-anchor": "end" }, label));
  }
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

function band({ scale: { x, y } }, line, number) {
  if (!(line.band?.length > 1)) return [];
  const upper = line.band.map(([round, , high]) => `${x(round).toFixed(1)},${y(high).toFixed(1)}`);
  const lower = line.band.map(([round, low]) => `${x(round).toFixed(1)},${y(low).toFixed(1)}`).reverse();
  const corners = [...upper, ...lower].join(" ");
  return [svgElement("polygon", { class: `band ${line.style.colour}`, points: corners, "data-series": number })];
}

function linePath(chart, line, number) {
  const { x, y } = chart.scale;
  const kind = `series ${line.style.colour} ${line.weight ?? ""}`;
  const shape = { class: kind, "stroke-dasharray": line.style.dash, d: pathData(line.points, chart.scale) };
  const pieces = [svgElement("path", { ...shape, "data-series": number })];
  line.points.forEach(([round, value], at) => {
    const isGap = (number) => (line.points[number]?.[1] ?? null) === null;
    const isAlone = !isGap(at) && isGap(at - 1) && isGap(at + 1);
    const shape = { class: `dot ${line.style.colour}`, cx: x(round), cy: y(value), r: 2.5 };
    if (isAlone) pieces.push(svgElement("circle", shape));
  });
  return pieces;
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
    svgElement("circle", { class: `ring ${line.style.colour}`, cx: x, cy: y, r: 5 }),
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
