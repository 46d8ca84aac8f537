// The map of clients and classes. Fields are painted on a canvas, as there may be very many; names are text.
const WIDEST = 16000;

function startShards() {
  const [setting, seed] = [byId("shards-setting"), byId("shards-seed")];
  const held = () => numbers.settings[Number(setting.value)]?.shards ?? [];
  const place = byId("shards-map");
  let width = 0;
  const draw = () => {
    width = place.clientWidth;
    drawShards(place, held().find((one) => String(one.seed) === seed.value));
  };
  const fill = () => {
    fillSelect(seed, held().map((one) => ({ value: one.seed, text: String(one.seed) })), seed.value);
    draw();
  };
  fillSelect(setting, settingEntries(), 0);
  setting.addEventListener("change", fill);
  seed.addEventListener("change", draw);
  new ResizeObserver(() => place.clientWidth !== width && draw()).observe(place);
  fill();
  return draw;
}

function drawShards(place, shards) {
  const told = byId("shards-told");
  if (!shards) {
    told.textContent = "No run of this setting kept a list of who holds what.";
    return place.replaceChildren();
  }
  const map = { shards, columns: shards.classes.length, rows: rowsOf(shards), told, place };
  if (map.columns > WIDEST) {
    told.textContent = `There are too many classes (${map.columns}) to draw.`;
    return place.replaceChildren();
  }
  const names = element("div", { class: "names" }, ...map.rows.map((row) => nameOf(row)));
  const room = place.clientWidth - Math.min(190, 40 + 7 * largest(map.rows.map((row) => row.name.length + row.more.length)));
  const least = map.columns > 40 ? 9 : 20;
  map.wide = Math.max(1, Math.min(Math.max(least, Math.floor(room / map.columns)), 64, Math.floor(WIDEST / map.columns)));
  map.high = map.rows.length > 40 ? 16 : 24;
  for (const name of names.children) name.style.height = `${map.high}px`;
  map.canvas = element("canvas", { tabindex: "0", role: "application", "aria-roledescription": "heat map", "aria-label": "Training examples by client and class" });
  map.here = element("div", { class: "here" });
  map.here.hidden = true;
  map.tip = element("div", { class: "tip", "aria-hidden": "true" });
  map.tip.hidden = true;
  const box = element("div", { class: "map" }, element("div", { class: "corner" }, "client"), headsOf(map), names, element("div", { class: "field" }, map.canvas, map.here));
  place.replaceChildren(box, map.tip);
  paint(map);
  listen(map);
  const examples = map.rows.slice(1).reduce((sum, row) => sum + row.total, 0);
  map.rest = `${map.rows.length - 1} clients with ${examples.toLocaleString("en")} training examples, ${map.rows[0].total.toLocaleString("en")} public ones, ${map.columns} classes.`;
  told.textContent = map.rest;
}

function rowsOf(shards) {
  const total = (counts) => counts.reduce((sum, count) => sum + count, 0);
  const clients = shards.clients.map((id, at) => ({
    name: String(id), more: [shards.domains[at], shards.flipped[at] ? "flipped" : "", shards.noisy[at] ? "noisy labels" : ""].filter(Boolean).join(", "),
    counts: shards.train[at], total: total(shards.train[at]), said: `Client ${id}`,
  }));
  return [{ name: "U", more: "public", counts: shards.public, total: total(shards.public), said: "Public set" }, ...clients];
}

function nameOf(row) {
  return element("span", { title: `${row.name} ${row.more}` }, row.name, element("i", {}, row.more));
}

function headsOf(map) {
  const longest = largest(map.shards.classes.map((name) => name.length));
  const isTall = longest * 7 > map.wide - 2;
  const every = Math.ceil(13 / map.wide);
  const heads = map.shards.classes.map((name, at) => {
    const head = element("span", { title: name }, at % every || map.wide < 2 ? "" : name);
    head.style.width = `${map.wide}px`;
    return head;
  });
  return element("div", { class: isTall ? "heads tall" : "heads" }, ...heads);
}

function paint(map) {
  const [width, height] = [map.wide * map.columns, map.high * map.rows.length];
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
    field(pen, map, at, column, count, Math.sqrt(share), colours);
  }));
}

function field(pen, map, row, column, count, strength, colours) {
  const gap = map.wide > 6 ? 1 : 0;
  const [x, y] = [column * map.wide, row * map.high];
  const alpha = count ? 0.06 + 0.94 * strength : 0;
  const colour = colours.accent.map((part, at) => Math.round(alpha * part + (1 - alpha) * colours.card[at]));
  pen.fillStyle = `rgb(${colour})`;
  pen.fillRect(x, y, map.wide - gap, map.high - gap - (row === 0 ? 2 : 0));
  const text = String(count);
  if (!count || map.high < 16 || pen.measureText(text).width > map.wide - 4) return;
  pen.fillStyle = brightness(colour) > 0.18 ? "#000" : "#fff"; // whichever of the two can be read better
  pen.fillText(text, x + (map.wide - gap) / 2, y + map.high / 2);
}

function rgb(colour) {
  return colour.match(/[\d.]+/g).slice(0, 3).map(Number);
}

function brightness(colour) {
  const [red, green, blue] = colour.map((part) => (part / 255 <= 0.04 ? part / 3295 : ((part / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}

function listen(map) {
  let at = null;
  const show = (place) => {
    at = place;
    map.here.hidden = map.tip.hidden = place === null;
    map.told.textContent = place === null ? map.rest : tellField(map, place);
    if (!place) return;
    Object.assign(map.here.style, { left: `${place.column * map.wide}px`, top: `${place.row * map.high}px`, width: `${map.wide}px`, height: `${map.high}px` });
    putTip(map);
  };
  const pointed = (event) => {
    const box = map.canvas.getBoundingClientRect();
    const [column, row] = [Math.floor((event.clientX - box.left) / map.wide), Math.floor((event.clientY - box.top) / map.high)];
    show(column >= 0 && column < map.columns && row >= 0 && row < map.rows.length ? { row, column } : null);
  };
  map.canvas.addEventListener("pointermove", pointed);
  map.canvas.addEventListener("pointerdown", pointed);
  map.canvas.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && show(null));
  map.canvas.addEventListener("blur", () => show(null));
  map.canvas.addEventListener("keydown", (event) => {
    const step = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (event.key === "Escape") show(null);
    if (!step) return;
    event.preventDefault();
    const kept = (value, count) => Math.min(count - 1, Math.max(0, value));
    show(at ? { row: kept(at.row + step[0], map.rows.length), column: kept(at.column + step[1], map.columns) } : { row: 0, column: 0 });
    map.here.scrollIntoView({ block: "nearest", inline: "nearest" });
  });
}

function tellField(map, { row, column }) {
  const { said, more, counts, total } = map.rows[row];
  const share = total ? ` (${((100 * counts[column]) / total).toFixed(1)} % of ${total.toLocaleString("en")})` : "";
  return `${said}${row && more ? `, ${more}` : ""}, class ${map.shards.classes[column]}: ${counts[column].toLocaleString("en")}${share}`;
}

function putTip(map) {
  const [field, around] = [map.here.getBoundingClientRect(), map.place.getBoundingClientRect()];
  map.tip.textContent = map.told.textContent;
  const toLeft = field.left - around.left > around.width / 2;
  map.tip.style.left = toLeft ? "auto" : `${field.right - around.left + 6}px`;
  map.tip.style.right = toLeft ? `${around.right - field.left + 6}px` : "auto";
  map.tip.style.top = `${field.top - around.top}px`;
}
