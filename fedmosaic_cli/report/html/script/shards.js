// The map of clients and classes. Cells are painted on a canvas, because there may be very many; names are text.
const WIDEST = 16000;

function startShards() {
  const [setting, seed] = [byId("shards-setting"), byId("shards-seed")];
  const held = () => numbers.settings[Number(setting.value)]?.shards ?? [];
  const container = byId("shards-map");
  let width = 0;
  const draw = () => {
    width = container.clientWidth;
    drawShards(container, held().find((one) => String(one.seed) === seed.value));
  };
  const fill = () => {
    fillSelect(seed, held().map((one) => ({ value: one.seed, text: String(one.seed) })), seed.value);
    draw();
  };
  fillSelect(setting, settingOptions(), 0);
  setting.addEventListener("change", fill);
  seed.addEventListener("change", draw);
  new ResizeObserver(() => container.clientWidth !== width && draw()).observe(container);
  fill();
  return draw;
}

function drawShards(container, shards) {
  const status = byId("shards-status");
  if (!shards) {
    status.textContent = "No run of this setting contains a valid shard manifest.";
    return container.replaceChildren();
  }
  const map = { shards, columns: shards.classes.length, rows: shardRows(shards), status, container };
  if (map.columns > WIDEST) {
    status.textContent = `Too many classes to draw (${map.columns}).`;
    return container.replaceChildren();
  }
  const names = element("div", { class: "names" }, ...map.rows.map((row) => rowName(row)));
  const longest = largest(map.rows.map((row) => row.name.length + row.more.length));
  const room = container.clientWidth - Math.min(190, 40 + 7 * longest);
  const least = map.columns > 40 ? 9 : 20;
  const wanted = Math.min(64, Math.max(least, Math.floor(room / map.columns)));
  map.cellWidth = Math.max(1, Math.min(wanted, Math.floor(WIDEST / map.columns)));
  map.cellHeight = map.rows.length > 40 ? 16 : 24;
  for (const name of names.children) name.style.height = `${map.cellHeight}px`;
  const role = { role: "application", "aria-roledescription": "heat map" };
  map.canvas = element("canvas", { tabindex: "0", ...role, "aria-label": "Training examples by client and class" });
  map.marker = element("div", { class: "here" });
  map.marker.hidden = true;
  map.tip = element("div", { class: "tip", "aria-hidden": "true" });
  map.tip.hidden = true;
  const corner = element("div", { class: "corner" }, element("span", {}, "class →"), element("span", {}, "client ↓"));
  const cell = element("div", { class: "field" }, map.canvas, map.marker);
  container.replaceChildren(element("div", { class: "map" }, corner, columnHeads(map), names, cell), map.tip);
  paint(map);
  addListeners(map);
  const [publicTotal, ...others] = map.rows.map((row) => row.total);
  const examples = others.reduce((sum, total) => sum + total, 0);
  map.summary = `${countNoun(others.length, "client")} with ${countNoun(examples, "training example")}, `
    + `${countNoun(publicTotal, "public example")}, ${countNoun(map.columns, "class", "es")}.`;
  status.textContent = map.summary;
}

function shardRows(shards) {
  const total = (counts) => counts.reduce((sum, count) => sum + count, 0);
  const about = (at) => [shards.domains[at], shards.flipped[at] && "flipped", shards.noisy[at] && "noisy labels"];
  const row = (name, more, counts, title) => ({ name, more, counts, title, total: total(counts) });
  const clients = shards.clients.map((id, at) => {
    return row(String(id), about(at).filter(Boolean).join(", "), shards.train[at], `Client ${id}`);
  });
  const counts = shards.public ?? shards.classes.map(() => 0);
  const open = row("U", shards.public ? "public" : "public, classes unknown", counts, "Public set");
  return [{ ...open, total: shards.public_size }, ...clients];
}

function rowName(row) {
  return element("span", { title: `${row.name} ${row.more}` }, row.name, element("i", {}, row.more));
}

function columnHeads(map) {
  const longest = largest(map.shards.classes.map((name) => name.length));
  const isTall = longest * 7 > map.cellWidth - 2;
  const every = Math.ceil(13 / map.cellWidth);
  const heads = map.shards.classes.map((name, at) => {
    const head = element("span", { title: name }, at % every || map.cellWidth < 2 ? "" : name);
    head.style.width = `${map.cellWidth}px`;
    return head;
  });
  return element("div", { class: isTall ? "heads tall" : "heads" }, ...heads);
}

function paint(map) {
  const [width, height] = [map.cellWidth * map.columns, map.cellHeight * map.rows.length];
  const ratio = Math.max(1, Math.min(devicePixelRatio || 1, WIDEST / width, WIDEST / height));
  Object.assign(map.canvas, { width: Math.round(width * ratio), height: Math.round(height * ratio) });
  map.canvas.style.width = `${width}px`;
  map.canvas.style.height = `${height}px`;
  const pen = map.canvas.getContext("2d");
  pen.scale(ratio, ratio);
  const colours = { accent: rgb(resolvedColour("--accent")), card: rgb(resolvedColour("--card")) };
  const most = [largest(map.rows[0].counts), largest(map.rows.slice(1).map((row) => largest(row.counts)))];
  pen.font = "11px system-ui, sans-serif";
  pen.textAlign = "center";
  pen.textBaseline = "middle";
  map.rows.forEach((row, at) => row.counts.forEach((count, column) => {
    const share = count / (most[Math.min(at, 1)] || 1);
    paintCell(pen, map, at, column, count, Math.sqrt(share), colours);
  }));
}

function paintCell(pen, map, row, column, count, strength, colours) {
  const gap = map.cellWidth > 6 ? 1 : 0;
  const [x, y] = [column * map.cellWidth, row * map.cellHeight];
  const alpha = count ? 0.06 + 0.94 * strength : 0;
  const colour = colours.accent.map((part, at) => Math.round(alpha * part + (1 - alpha) * colours.card[at]));
  pen.fillStyle = `rgb(${colour})`;
  pen.fillRect(x, y, map.cellWidth - gap, map.cellHeight - gap - (row === 0 ? 2 : 0));
  const text = String(count);
  if (!count || map.cellHeight < 16 || pen.measureText(text).width > map.cellWidth - 4) return;
  pen.fillStyle = brightness(colour) > 0.18 ? "#000" : "#fff"; // the more readable of the two
  pen.fillText(text, x + (map.cellWidth - gap) / 2, y + map.cellHeight / 2);
}

function rgb(colour) {
  return colour.match(/[\d.]+/g).slice(0, 3).map(Number);
}

function brightness(colour) {
  const linear = (part) => (part <= 0.04 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
  const [red, green, blue] = colour.map((part) => linear(part / 255));
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}

function addListeners(map) {
  let at = null;
  const show = (position) => {
    at = position;
    map.marker.hidden = map.tip.hidden = position === null;
    map.status.textContent = position === null ? map.summary : describeCell(map, position);
    if (!position) return;
    const [width, height] = [map.cellWidth, map.cellHeight];
    const box = { left: position.column * width, top: position.row * height, width, height };
    for (const [side, pixels] of Object.entries(box)) map.marker.style[side] = `${pixels}px`;
    moveTip(map);
  };
  const pointed = (event) => {
    const box = map.canvas.getBoundingClientRect();
    const column = Math.floor((event.clientX - box.left) / map.cellWidth);
    const row = Math.floor((event.clientY - box.top) / map.cellHeight);
    show(column >= 0 && column < map.columns && map.rows[row] ? { row, column } : null);
  };
  map.canvas.addEventListener("pointermove", pointed);
  map.canvas.addEventListener("pointerdown", pointed);
  map.canvas.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && show(null));
  map.canvas.addEventListener("blur", () => show(null));
  map.canvas.addEventListener("keydown", (event) => {
    const step = ARROWS[event.key];
    if (event.key === "Escape") show(null);
    if (!step) return;
    event.preventDefault();
    const kept = (value, count) => Math.min(count - 1, Math.max(0, value));
    const { row, column } = at ?? { row: -step[0], column: -step[1] };
    show({ row: kept(row + step[0], map.rows.length), column: kept(column + step[1], map.columns) });
    map.marker.scrollIntoView({ block: "nearest", inline: "nearest" });
  });
}

function describeCell(map, { row, column }) {
  const { title, more, counts, total } = map.rows[row];
  const share = total ? ` (${((100 * counts[column]) / total).toFixed(1)}% of ${formatCount(total)})` : "";
  const who = row && more ? `${title}, ${more}` : title;
  if (!row && !map.shards.public) return `${title}: ${formatCount(total)}, of unknown classes`;
  return `${who}, class ${map.shards.classes[column]}: ${formatCount(counts[column])}${share}`;
}

function formatCount(count) {
  return count.toLocaleString("en");
}

function countNoun(count, thing, more = "s") {
  return `${formatCount(count)} ${thing}${count === 1 ? "" : more}`;
}

function moveTip(map) {
  const [cell, around] = [map.marker.getBoundingClientRect(), map.container.getBoundingClientRect()];
  map.tip.textContent = map.status.textContent;
  const toLeft = cell.left - around.left > around.width / 2;
  map.tip.style.left = toLeft ? "auto" : `${cell.right - around.left + 6}px`;
  map.tip.style.right = toLeft ? `${around.right - cell.left + 6}px` : "auto";
  map.tip.style.top = `${cell.top - around.top}px`;
}
