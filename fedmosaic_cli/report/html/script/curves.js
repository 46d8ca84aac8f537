const FRACTIONS = [
  "accuracy", "agreement", "pseudo_label_accuracy", "majority_accuracy", "public_share", "vote_agreement", "weight_share",
];
const LOSSES = ["loss_private", "loss_public", "test_loss"];
const MEAN_STYLE = { color: "var(--ink)", dash: "", marker: "" };
const NO_CURVES = "The page has no curves of this run.";

function settingOptions() {
  return numbers.settings.map((setting, value) => ({ value, text: setting.label }));
}

function startExplorer() {
  const state = { picked: new Map(), chart: lineChart(byId("explore-chart"), "Values of clients by round") };
  const [setting, method, seed, value] = ["setting", "method", "seed", "value"].map((name) => byId(`explore-${name}`));
  const methods = () => numbers.settings[Number(setting.value)]?.methods ?? [];
  const run = () => methods()[Number(method.value)]?.runs.find((one) => String(one.seed) === seed.value);
  let wantedValue = "accuracy"; // a run without these values must not change the choice
  const fillMethods = () => {
    const wanted = method.selectedOptions[0]?.textContent;
    const same = methods().findIndex((one) => one.title === wanted);
    const ours = methods().findIndex((one) => one.family === "fedmosaic");
    const entries = methods().map((one, number) => ({ value: number, text: one.title }));
    fillSelect(method, entries, same >= 0 ? same : Math.max(ours, 0));
  };
  const fillSeeds = () => {
    const runs = (methods()[Number(method.value)]?.runs ?? []).filter((one) => one.curve !== null);
    fillSelect(seed, runs.map((one) => ({ value: one.seed, text: String(one.seed) })), seed.value);
  };
  const update = () => {
    const curve = numbers.curves[run()?.curve];
    const known = Object.entries(numbers.values).filter(([name]) => curve && name in curve.values);
    fillSelect(value, known.map(([name, text]) => ({ value: name, text })), wantedValue);
    byId("explore-log-switch").hidden = !LOSSES.includes(value.value);
    const names = [setting, method].map((select) => select.selectedOptions[0]?.textContent);
    state.title = `${names.join(", ")}, seed ${seed.value}`;
    showClients(state, numbers.settings[Number(setting.value)], run(), curve, value.value);
  };
  fillSelect(setting, settingOptions(), 0);
  const refill = { [setting.id]: [fillMethods, fillSeeds], [method.id]: [fillSeeds], [seed.id]: [] };
  for (const select of [setting, method, seed]) {
    select.addEventListener("change", () => {
      refill[select.id].forEach((fill) => fill());
      update();
    });
  }
  value.addEventListener("change", () => {
    wantedValue = value.value;
    update();
  });
  byId("explore-log").addEventListener("change", update);
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
  const redraw = () => drawClients(state, curve, rows, entries, picked, value, isShared);
  const groups = isShared ? [] : [...new Set(domains)].filter(Boolean);
  if (entries.length > 1) chips(picks, entries, groups, picked, redraw);
  else picks.replaceChildren();
  redraw();
}

function drawClients({ chart, title }, curve, rows, entries, picked, value, isShared) {
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
    series.push({ name: `Mean of ${chosen.length} clients`, style: MEAN_STYLE, weight: "strong", points });
  }
  showChart(chart, {
    series, title: `${title}: ${numbers.values[value] ?? ""}`, metric: numbers.values[value],
    isLog: LOSSES.includes(value) && byId("explore-log").checked, top: FRACTIONS.includes(value) ? 1 : undefined, alwaysShown: value === "lambda" ? [0, 1] : [],
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
  const pickedBySetting = new Map();
  // Curves of Local and of FedMosaic may coincide: dashed lines are on top, and Local above them is thin.
  const level = (line) => (line.weight === "thin") + Boolean(line.style.dash);
  const upperLinesLast = (one, other) => level(one) - level(other);
  const update = () => {
    const methods = numbers.settings[Number(setting.value)]?.methods ?? [];
    const weight = (method) => (method.family === "local" ? "thin" : "");
    const lines = methods.map((method) => ({ ...methodLine(method), style: method.style, weight: weight(method) }));
    const first = ["local", "centralized", "fedavg", "fedmosaic"];
    if (!pickedBySetting.has(setting.value)) {
      const wanted = methods.flatMap((one, number) => (first.includes(one.family) ? [number] : []));
      pickedBySetting.set(setting.value, new Set(wanted));
    }
    const picked = pickedBySetting.get(setting.value);
    const redraw = () => showChart(chart, {
      series: lines.filter((line, number) => picked.has(number) && line.points.length).sort(upperLinesLast),
      title: `${setting.selectedOptions[0]?.textContent}: accuracy of methods`, metric: "Mean accuracy",
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
