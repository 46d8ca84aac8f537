// A line chart in SVG. `series` are {name, style, weight, points: [[x, y or null]], band: [[x, low, high]]}; later ones
// lie on top. `told(series, point)` says in words what is pointed at: the pointer, a finger and the arrow keys can all
// point. No value lies below 0 or above `top`; `reach` is shown whatever the values are.
const ARROWS = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
const MARGIN = { left: 58, right: 14, top: 12, bottom: 38 };

function lineChart(place, label) {
  const chart = { place, series: [], chosen: null, told: () => "", form: rounded };
  const role = { role: "application", "aria-roledescription": "line chart", "aria-label": label };
  chart.svg = drawn("svg", { tabindex: "0", ...role });
  chart.tip = element("div", { class: "tip", "aria-hidden": "true" });
  chart.output = element("output", { class: "status" });
  chart.tip.hidden = true;
  place.append(chart.svg, chart.tip, chart.output);
  chart.svg.addEventListener("pointermove", (event) => pointAt(chart, nearest(chart, event)));
  chart.svg.addEventListener("pointerdown", (event) => pointAt(chart, nearest(chart, event)));
  chart.svg.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && pointAt(chart, null));
  chart.svg.addEventListener("keydown", (event) => moveBy(chart, event));
  chart.svg.addEventListener("blur", () => pointAt(chart, null));
  new ResizeObserver(() => chart.width !== place.clientWidth && drawChart(chart)).observe(place);
  return chart;
}

function showChart(chart, { series, told, form, top, reach, empty }) {
  Object.assign(chart, { series, told, form, top, reach, empty, chosen: null });
  drawChart(chart);
}

function drawChart(chart) {
  const width = Math.max(chart.place.clientWidth, 240);
  const height = width < 560 ? 270 : 360;
  chart.width = chart.place.clientWidth;
  chart.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  chart.svg.setAttribute("height", height);
  chart.svg.classList.remove("pointed");
  chart.tip.hidden = true;
  const drawnPoints = chart.series.flatMap((line) => [...line.points, ...(line.band ?? [])]);
  const numbersOnly = drawnPoints.flatMap((point) => point.slice(1)).filter((y) => y !== null);
  if (!numbersOnly.length) {
    chart.scale = null;
    chart.svg.replaceChildren(drawn("text", { x: width / 2, y: height / 2, "text-anchor": "middle" }, chart.empty));
    chart.output.textContent = chart.empty;
    return;
  }
  chart.scale = scaleOf(chart, numbersOnly, width, height);
  chart.lines = drawn("g");
  chart.over = drawn("g");
  chart.svg.replaceChildren(...axes(chart, width, height), chart.lines, chart.over);
  chart.series.forEach((line, number) => chart.lines.append(...band(chart, line, number)));
  chart.series.forEach((line, number) => chart.lines.append(...shapes(chart, line, number)));
  chart.output.textContent = "Point at a line, or use the arrow keys, to read its values.";
}

function scaleOf(chart, ys, width, height) {
  const xs = chart.series.flatMap((line) => line.points.map((point) => point[0]));
  const shown = [...ys, ...(chart.reach ?? [])];
  let [low, high] = [smallest(shown), largest(shown)];
  if (low < 0.35 * high) low = 0;
  // A mean of equals may differ from them in its last digit, and so small a step would never get anywhere.
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
    pieces.push(drawn("line", { class: "grid", x1: MARGIN.left, x2: width - MARGIN.right, y1: y, y2: y }));
    pieces.push(drawn("text", { x: MARGIN.left - 8, y: y + 4, "text-anchor": "end" }, chart.form(tick, scale.step)));
  }
  const step = Math.max(1, Math.round(niceStep(Math.max(scale.right - scale.left, 1), width < 560 ? 5 : 10)));
  const ticks = [scale.left];
  const second = Math.ceil((scale.left + step * 0.6) / step) * step;
  for (let tick = second; tick <= scale.right; tick += step) ticks.push(tick);
  const base = height - MARGIN.bottom;
  for (const tick of ticks) {
    pieces.push(drawn("line", { class: "axis", x1: scale.x(tick), x2: scale.x(tick), y1: base, y2: base + 4 }));
    pieces.push(drawn("text", { x: scale.x(tick), y: base + 18, "text-anchor": "middle" }, String(tick)));
  }
  pieces.push(drawn("line", { class: "axis", x1: MARGIN.left, x2: width - MARGIN.right, y1: base, y2: base }));
  pieces.push(drawn("text", { x: (MARGIN.left + width) / 2, y: height - 4, "text-anchor": "middle" }, "round"));
  return pieces;
}

function band({ scale: { x, y } }, line, number) {
  if (!(line.band?.length > 1)) return [];
  const upper = line.band.map(([round, , high]) => `${x(round).toFixed(1)},${y(high).toFixed(1)}`);
  const lower = line.band.map(([round, low]) => `${x(round).toFixed(1)},${y(low).toFixed(1)}`).reverse();
  const corners = [...upper, ...lower].join(" ");
  return [drawn("polygon", { class: `band ${line.style.colour}`, points: corners, "data-series": number })];
}

function shapes(chart, line, number) {
  const { x, y } = chart.scale;
  const kind = `series ${line.style.colour} ${line.weight ?? ""}`;
  const shape = { class: kind, "stroke-dasharray": line.style.dash, d: pathOf(line.points, chart.scale) };
  const pieces = [drawn("path", { ...shape, "data-series": number })];
  line.points.forEach(([round, value], at) => {
    const isGap = (number) => (line.points[number]?.[1] ?? null) === null;
    const alone = !isGap(at) && isGap(at - 1) && isGap(at + 1);
    if (alone) pieces.push(drawn("circle", { class: `dot ${line.style.colour}`, cx: x(round), cy: y(value), r: 2.5 }));
  });
  return pieces;
}

// Where a value is missing the line has a gap.
function pathOf(points, { x, y }) {
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
    // Sideways counts less: whoever follows a line looks above and below the pointer.
    const away = Math.hypot(2 * (chart.scale.x(round) - px), chart.scale.y(value) - py);
    if (away < least) [least, best] = [away, { series, point }];
  }));
  return best;
}

function pointAt(chart, chosen) {
  chart.chosen = chosen;
  if (!chart.scale) return;
  chart.svg.classList.toggle("pointed", chosen !== null);
  chart.tip.hidden = chosen === null;
  chart.over.replaceChildren();
  for (const shape of chart.lines.children) {
    shape.classList.toggle("chosen", shape.dataset.series === String(chosen?.series));
  }
  if (!chosen) return;
  const line = chart.series[chosen.series];
  const [round, value] = line.points[chosen.point];
  const [x, y] = [chart.scale.x(round), chart.scale.y(value)];
  chart.over.append(
    drawn("line", { class: "guide", x1: x, x2: x, y1: MARGIN.top, y2: chart.scale.y(chart.scale.bottom) }),
    drawn("circle", { class: `ring ${line.style.colour}`, cx: x, cy: y, r: 5 }),
  );
  const told = chart.told(line, line.points[chosen.point], chosen.point) + alsoThere(chart, line, round, value);
  chart.output.textContent = chart.tip.textContent = told;
  const toLeft = x > chart.svg.clientWidth / 2;
  chart.tip.style.left = toLeft ? "auto" : `${x + 12}px`;
  chart.tip.style.right = toLeft ? `${chart.svg.clientWidth - x + 12}px` : "auto";
  chart.tip.style.top = `${Math.max(0, y - 34)}px`;
}

// Lines that lie on each other cannot be pointed at one by one, so the others are named too.
function alsoThere(chart, line, round, value) {
  const same = chart.series.filter((other) => other !== line
    && other.points.some(([x, y]) => x === round && y === value));
  if (!same.length) return "";
  return `; also ${same.length > 3 ? `${same.length} others` : same.map((other) => other.name).join(", ")}`;
}

function moveBy(chart, event) {
  if (!chart.scale) return;
  if (event.key === "Escape") return pointAt(chart, null);
  const step = { ...ARROWS, Home: [0, -Infinity], End: [0, Infinity] }[event.key];
  if (!step) return;
  event.preventDefault();
  const count = chart.series.length;
  const from = chart.chosen ?? { series: 0, point: 0 };
  const series = chart.chosen ? (from.series + step[0] + count) % count : 0;
  const known = chart.series[series].points.flatMap((point, number) => (point[1] === null ? [] : [number]));
  if (!known.length) return;
  const at = known.findIndex((number) => number >= from.point);
  const place = (at < 0 ? known.length - 1 : at) + (chart.chosen ? step[1] : 0);
  pointAt(chart, { series, point: known[Math.min(known.length - 1, Math.max(0, place))] });
}
