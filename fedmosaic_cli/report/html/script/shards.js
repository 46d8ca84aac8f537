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
  const told = byId("shards-status");
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
  const longest = largest(map.rows.map((row) => row.name.length + row.more.length));
  const room = place.clientWidth - Math.min(190, 40 + 7 * longest);
  const least = map.columns > 40 ? 9 : 20;
  const wanted = Math.min(64, Math.max(least, Math.floor(room / map.columns)));
  map.wide = Math.max(1, Math.min(wanted, Math.floor(WIDEST / map.columns)));
  map.high = map.rows.length > 40 ? 16 : 24;
  for (const name of names.children) name.style.height = `${map.high}px`;
  const role = { role: "application", "aria-roledescription": "heat map" };
  map.canvas = element("canvas", { tabindex: "0", ...role, "aria-label": "Training examples by client and class" });
  map.here = element("div", { class: "here" });
  map.here.hidden = true;
  map.tip = element("div", { class: "tip", "aria-hidden": "true" });
  map.tip.hidden = true;
  const corner = element("div", { class: "corner" }, element("span", {}, "class →"), element("span", {}, "client ↓"));
  const field = element("div", { class: "field" }, map.canvas, map.here);
  place.replaceChildren(element("div", { class: "map" }, corner, headsOf(map), names, field), map.tip);
  paint(map);
  listen(map);
  const [publicOnes, ...others] = map.rows.map((row) => row.total);
  const examples = others.reduce((sum, total) => sum + total, 0);
  map.rest = `${counted(others.length, "client")} with ${counted(examples, "training example")}, `
    + `${counted(publicOnes, "public one")}, ${counted(map.columns, "class", "es")}.`;
  told.textContent = map.rest;
}

function rowsOf(shards) {
  const total = (counts) => counts.reduce((sum, count) => sum + count, 0);
  const about = (at) => [shards.domains[at], shards.flipped[at] && "flipped", shards.noisy[at] && "noisy labels"];
  const row = (name, more, counts, said) => ({ name, more, counts, said, total: total(counts) });
  const clients = shards.clients.map((id, at) => {
    return row(String(id), about(at).filter(Boolean).join(", "), shards.train[at], `Client ${id}`);
  });
  const counts = shards.public ?? shards.classes.map(() => 0);
  const open = row("U", shards.public ? "public" : "public, not counted", counts, "Public set");
  return [{ ...open, total: shards.public_size }, ...clients];
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
  const linear = (part) => (part <= 0.04 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
  const [red, green, blue] = colour.map((part) => linear(part / 255));
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}

function listen(map) {
  let at = null;
  const show = (place) => {
    at = place;
    map.here.hidden = map.tip.hidden = place === null;
    map.told.textContent = place === null ? map.rest : tellField(map, place);
    if (!place) return;
    const corner = { left: place.column * map.wide, top: place.row * map.high, width: map.wide, height: map.high };
    for (const [side, pixels] of Object.entries(corner)) map.here.style[side] = `${pixels}px`;
    putTip(map);
  };
  const pointed = (event) => {
    const box = map.canvas.getBoundingClientRect();
    const column = Math.floor((event.clientX - box.left) / map.wide);
    const row = Math.floor((event.clientY - box.top) / map.high);
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
    map.here.scrollIntoView({ block: "nearest", inline: "nearest" });
  });
}

function tellField(map, { row, column }) {
  const { said, more, counts, total } = map.rows[row];
  const share = total ? ` (${((100 * counts[column]) / total).toFixed(1)}% of ${grouped(total)})` : "";
  const who = row && more ? `${said}, ${more}` : said;
  if (!row && !map.shards.public) return `${said}: ${grouped(total)}, of classes that nobody has counted`;
  return `${who}, class ${map.shards.classes[column]}: ${grouped(counts[column])}${share}`;
}

function grouped(count) {
  return count.toLocaleString("en");
}

function counted(count, thing, more = "s") {
  return `${grouped(count)} ${thing}${count === 1 ? "" : more}`;
}

function putTip(map) {
  const [field, around] = [map.here.getBoundingClientRect(), map.place.getBoundingClientRect()];
  map.tip.textContent = map.told.textContent;
  const toLeft = field.left - around.left > around.width / 2;
  map.tip.style.left = toLeft ? "auto" : `${field.right - around.left + 6}px`;
  map.tip.style.right = toLeft ? `${around.right - field.left + 6}px` : "auto";
  map.tip.style.top = `${field.top - around.top}px`;
}
