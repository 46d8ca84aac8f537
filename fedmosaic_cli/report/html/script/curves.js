const FRACTIONS = ["accuracy", "agreement", "pseudo_label_accuracy"];
const LOCAL = { colour: "ink", dash: "5 4" };
const NO_CURVES = "The page has no curves of this run.";

function settingOptions() {
  return numbers.settings.map((setting, value) => ({ value, text: setting.label }));
}

function startExplorer() {
  const state = { picked: new Map(), chart: lineChart(byId("explore-chart"), "Values of clients by round") };
  const [setting, method, seed, value] = ["setting", "method", "seed", "value"].map((name) => byId(`explore-${name}`));
  const methods = () => numbers.settings[Number(setting.value)]?.methods ?? [];
  const run = () => methods()[Number(method.value)]?.runs.find((one) => String(one.seed) === seed.value);
  const fillMethods = () => {
    const wanted = method.selectedOptions[0]?.textContent;
    const same = methods().findIndex((one) => one.title === wanted);
    const ours = methods().findIndex((one) => one.family === "fedmosaic");
    const entries = methods().map((one, number) => ({ value: number, text: one.title }));
    fillSelect(method, entries, same >= 0 ? same : Math.max(ours, 0));
  };
  const fillSeeds = () => {
    const entries = (methods()[Number(method.value)]?.runs ?? []).map((one) => ({
      value: one.seed, text: one.curve === null ? `${one.seed} (no curves)` : String(one.seed), off: one.curve === null,
    }));
    fillSelect(seed, entries, seed.value);
  };
  const update = () => {
    const curve = numbers.curves[run()?.curve];
    const entries = Object.entries(numbers.values).map(([name, text]) => ({
      value: name, text: !curve || name in curve.values ? text : `${text}: none`, off: curve && !(name in curve.values),
    }));
    fillSelect(value, entries, value.value || "accuracy");
    showClients(state, numbers.settings[Number(setting.value)], run(), curve, value.value);
  };
  fillSelect(setting, settingOptions(), 0);
  const levels = [[setting, fillMethods], [method, fillSeeds], [seed, () => {}], [value, () => {}]];
  levels.forEach(([select], level) => select.addEventListener("change", () => {
    levels.slice(level, 2).forEach(([, fill]) => fill());
    update();
  }));
  fillMethods();
  fillSeeds();
  update();
}

function showClients(state, setting, run, curve, value) {
  const picks = byId("explore-picks");
  const rows = curve?.values[value] ?? [];
  const shards = setting?.shards.find((one) => one.seed === run?.seed);
  const domains = shards && shards.domains.length === curve?.clients ? shards.domains : [];
  const isShared = rows.length === 1 && curve.clients > 1;
  const entries = rows.map((_, client) => ({
    name: isShared ? "All clients" : `${client}${domains[client] ? ` ${domains[client]}` : ""}`,
    style: lineStyle(client), group: domains[client],
  }));
  const key = `${setting?.label} ${entries.length}`;
  if (!state.picked.has(key)) state.picked.set(key, new Set(entries.keys()));
  const picked = state.picked.get(key);
  const redraw = () => drawClients(state.chart, curve, rows, entries, picked, value, isShared);
  const groups = isShared ? [] : [...new Set(domains)].filter(Boolean);
  if (entries.length > 1) chips(picks, entries, groups, picked, redraw);
  else picks.replaceChildren();
  redraw();
}

function drawClients(chart, curve, rows, entries, picked, value, isShared) {
  const format = FRACTIONS.includes(value) ? formatPercent : formatNumber;
  const chosen = entries.flatMap((entry, client) => (picked.has(client) || entries.length === 1 ? [client] : []));
  const series = chosen.map((client) => ({
    name: isShared ? "All clients" : `Client ${entries[client].name}`, style: entries[client].style,
    points: curve.rounds.map((round, at) => [round, rows[client][at]]),
  }));
  if (chosen.length > 1) {
    const points = curve.rounds.map((round, at) => {
      const known = chosen.map((client) => rows[client][at]).filter((one) => one !== null);
      return [round, known.length ? mean(known) : null];
    });
    const style = { colour: "ink", dash: "" };
    series.push({ name: `Mean of ${chosen.length} clients`, style, weight: "strong", points });
  }
  showChart(chart, {
    series, top: FRACTIONS.includes(value) ? 1 : undefined, alwaysShown: value === "lambda" ? [0, 1] : [],
    formatTick: (tick, step) => tickText(tick, step, FRACTIONS.includes(value)),
    describe: (line, [round, number]) => `${line.name}, round ${round}: ${format(number)}`,
    empty: curve ? "No client is selected." : NO_CURVES,
  });
}

function tickText(tick, step, isFraction) {
  const [number, size] = isFraction ? [100 * tick, 100 * step] : [tick, step];
  const isOdd = Math.abs(number) >= 1e5 || size < 1e-4;
  const places = (String(Number(size.toPrecision(2))).split(".")[1] ?? "").length;
  const text = !isOdd ? number.toFixed(places) : number ? Number(number.toPrecision(3)).toExponential() : "0";
  return isFraction ? `${text}%` : text;
}

function startComparison() {
  const chart = lineChart(byId("compare-chart"), "Mean accuracy of methods by round");
  const setting = byId("compare-setting");
  const [pickedBySetting, styles] = [new Map(), methodStyles()];
  const thinLinesLast = (one, other) => (one.weight === "thin") - (other.weight === "thin");
  const update = () => {
    const methods = numbers.settings[Number(setting.value)]?.methods ?? [];
    const lines = methods.map((method) => ({ ...methodLine(method), ...styles.get(method.title) }));
    const first = ["local", "centralized", "fedavg", "fedmosaic"];
    if (!pickedBySetting.has(setting.value)) {
      const wanted = methods.flatMap((one, number) => (first.includes(one.family) ? [number] : []));
      pickedBySetting.set(setting.value, new Set(wanted));
    }
    const picked = pickedBySetting.get(setting.value);
    const redraw = () => showChart(chart, {
      series: lines.filter((line, number) => picked.has(number) && line.points.length).sort(thinLinesLast),
      top: 1, formatTick: (tick, step) => tickText(tick, step, true), describe: describeMethod,
      empty: picked.size ? "The page has no curves of these methods." : "No method is selected.",
    });
    chips(byId("compare-picks"), lines, [], picked, redraw);
    redraw();
  };
  fillSelect(setting, settingOptions(), 0);
  setting.addEventListener("change", update);
  update();
}

// Styles by title, so that a method has the same style in every setting. Curves of Local and of FedMosaic variants may
// coincide: upper lines are dashed, and Local, on top, is thin.
function methodStyles() {
  const every = numbers.settings.flatMap((setting) => setting.methods);
  const titles = (family) => new Set(every.filter((method) => family(method.family)).map((method) => method.title));
  const ours = [...titles((family) => family === "fedmosaic")];
  const others = [...titles((family) => family !== "fedmosaic" && family !== "local")];
  const dashes = (number) => (number ? `${12 + 6 * Math.floor(number / 8)} 5` : "");
  return new Map([
    ...ours.map((title, number) => [title, { style: { ...lineStyle(number), dash: dashes(number) }, weight: "strong" }]),
    ...others.map((title, number) => [title, { style: lineStyle(ours.length + number) }]),
    ...[...titles((family) => family === "local")].map((title) => [title, { style: LOCAL, weight: "thin" }]),
  ]);
}

// The mean over clients for each seed, then mean, lowest and highest over seeds.
function methodLine(method) {
  const byRound = new Map();
  const shown = method.runs.filter((run) => run.curve !== null);
  for (const { curve } of shown) {
    const { rounds, values } = numbers.curves[curve];
    rounds.forEach((round, at) => {
      const known = (values.accuracy ?? []).map((row) => row[at]).filter((value) => value !== null);
      if (known.length) byRound.set(round, [...(byRound.get(round) ?? []), mean(known)]);
    });
  }
  const everySeed = [...byRound.keys()].filter((round) => byRound.get(round).length === shown.length);
  const rounds = everySeed.sort((one, other) => one - other);
  const range = (round) => [round, smallest(byRound.get(round)), largest(byRound.get(round))];
  return {
    name: method.title, seeds: shown.length, of: method.runs.length,
    points: rounds.map((round) => [round, mean(byRound.get(round))]),
    band: shown.length > 1 ? rounds.map(range) : [],
  };
}

function describeMethod(line, [round, value], at) {
  const seeds = line.seeds === line.of ? `${line.seeds}` : `${line.seeds} of ${line.of}`;
  const [low, high] = (line.band[at] ?? []).slice(1).map(formatPercent);
  const spread = low ? `, seeds from ${low} to ${high}` : "";
  return `${line.name}, round ${round}: ${formatPercent(value)}${spread} (${seeds} ${line.of === 1 ? "seed" : "seeds"})`;
}
