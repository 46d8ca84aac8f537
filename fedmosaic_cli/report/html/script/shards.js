// The map of clients and classes. Cells are painted on a canvas, because there may be very many; names are text.
const WIDEST = 16000;

function startShards() {
  const [setting, seed] = [byId("shards-setting"), byId("shards-seed")];
  const held = () => numbers.settings[Number(setting.value)]?.shards ?? [];
  const container = byId("shards-map");
  let width = 0;
  const draw = () => {
    width = container.clientWidth;
    const shards = held().find((one) => String(one.seed) === seed.value);
    drawShards(container, shards);
    const title = `${setting.selectedOptions[0]?.textContent}, seed ${seed.value}: training examples per client and class`;
    const picture = () => mapPicture(container, title);
    container.closest(".savable").source = () => ({ title, picture, rows: () => mapRows(shards) });
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
  container.map = null;
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
  const frame = element("div", { class: "map" }, corner, columnHeads(map), names, cell);
  container.replaceChildren(frame, map.tip);
  hintScrolling(frame);
  container.map = map;
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
  const open = row("public set", shards.public ? "" : "classes unknown", counts, "Public set");
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
  pen.fillStyle = resolvedColour("--line"); // between the cells
  pen.fillRect(0, 0, width, height);
  pen.font = "11px system-ui, sans-serif";
  pen.textAlign = "center";
  pen.textBaseline = "middle";
  for (const cell of mapCells(map)) {
    pen.fillStyle = cell.ground;
    pen.fillRect(cell.x, cell.y, cell.width, cell.height);
    const text = String(cell.count);
    if (!cell.count || map.cellHeight < 16 || pen.measureText(text).width > map.cellWidth - 4) continue;
    pen.fillStyle = cell.ink;
    pen.fillText(text, cell.x + cell.width / 2, cell.y + cell.height / 2);
  }
}

// Position, count and colours of each cell. The public set has a separate scale and a wider line below.
function mapCells(map) {
  const [accent, card] = ["--accent", "--card"].map((name) => rgb(resolvedColour(name)));
  const most = [largest(map.rows[0].counts), largest(map.rows.slice(1).map((row) => largest(row.counts)))];
  const gap = map.cellWidth > 6 ? 1 : 0;
  return map.rows.flatMap((row, at) => row.counts.map((count, column) => {
    const alpha = count ? 0.06 + 0.94 * Math.sqrt(count / most[Math.min(at, 1)]) : 0;
    const colour = accent.map((part, at) => Math.round(alpha * part + (1 - alpha) * card[at]));
    const place = { x: column * map.cellWidth, y: at * map.cellHeight, width: map.cellWidth - gap };
    const ink = brightness(colour) > 0.18 ? "#000" : "#fff"; // the more readable of the two
    return { ...place, height: map.cellHeight - gap - (at === 0 ? 2 : 0), count, ground: `rgb(${colour})`, ink };
  }));
}

// The map as SVG, with all names.
function mapPicture(container, title) {
  const { map } = container;
  if (!map) return emptyPicture(600, 60, title);
  const names = map.rows.map((row) => `${row.name} ${row.more}`.trim());
  const isTall = largest(map.shards.classes.map((name) => textWidth(name, 11))) > map.cellWidth - 2;
  const [left, heads] = [largest(names.map((name) => textWidth(name, 11))) + 20,
    isTall ? largest(map.shards.classes.map((name) => textWidth(name, 11))) + 12 : 20];
  const top = 34 + heads;
  const [width, height] = [map.cellWidth * map.columns, map.cellHeight * map.rows.length];
  const picture = emptyPicture(Math.ceil(Math.max(left + width + 12, textWidth(title, 14) + 40)), top + height + 12, title);
  const text = (words, attributes) => svgElement("text", { "font-size": 11, fill: hexColour("var(--ink)"), ...attributes }, words);
  picture.append(svgElement("rect", { x: left, y: top, width, height, fill: hexColour("var(--line)") }));
  names.forEach((name, at) => {
    picture.append(text(name, { x: left - 8, y: top + (at + 0.5) * map.cellHeight + 4, "text-anchor": "end" }));
  });
  map.shards.classes.forEach((name, at) => {
    const [x, y] = [left + (at + 0.5) * map.cellWidth, top - 6];
    const turned = { "text-anchor": "start", transform: `translate(${x + 4} ${y}) rotate(-90)` };
    picture.append(text(name, isTall ? turned : { x, y, "text-anchor": "middle" }));
  });
  for (const { x, y, width: across, height: down, count, ground, ink } of mapCells(map)) {
    picture.append(svgElement("rect", { x: left + x, y: top + y, width: across, height: down, fill: hexColour(ground) }));
    const middle = { x: left + x + across / 2, y: top + y + down / 2 + 4, "text-anchor": "middle", fill: ink };
    if (count && textWidth(String(count), 11) <= across) picture.append(text(String(count), middle));
  }
  return picture;
}

function mapRows(shards) {
  if (!shards) return [];
  const unknown = shards.classes.map(() => "");
  return [
    ["client", "domain", ...shards.classes],
    ["public set", "", ...(shards.public ?? unknown)],
    ...shards.clients.map((id, at) => [id, shards.domains[at], ...shards.train[at]]),
  ];
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
