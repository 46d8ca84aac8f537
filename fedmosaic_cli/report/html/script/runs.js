function startRuns() {
  document.addEventListener("toggle", showConfiguration, true);
  const groups = [...document.querySelectorAll(".card.runs")].map((group) => ({
    group,
    wasOpen: group.open,
    label: group.querySelector("h3").textContent,
    runs: [...group.querySelectorAll(":scope > .run")],
  }));
  let texts = null; // made when they are first needed: there may be thousands of runs
  byId("runs-filter").addEventListener("input", (event) => {
    texts ??= groups.map(({ label, runs }) => runs.map((run) => `${label} ${run.textContent}`.toLowerCase()));
    const words = event.target.value.toLowerCase().split(/\s+/).filter(Boolean);
    const found = groups.map((one, number) => filterGroup(one, texts[number], words));
    byId("runs-found").textContent = words.length ? `${found.reduce((sum, count) => sum + count, 0)} found` : "";
  });
}

// A configuration is put in its place when it is asked for, as each is kept once for all runs that share it.
function showConfiguration(event) {
  const place = event.target.querySelector?.(":scope > pre[data-text]");
  if (place && event.target.open) place.textContent = numbers.texts[Number(place.dataset.text)];
}

function filterGroup({ group, wasOpen, runs }, texts, words) {
  runs.forEach((run, number) => (run.hidden = !words.every((word) => texts[number].includes(word))));
  const found = runs.filter((run) => !run.hidden).length;
  group.hidden = found === 0;
  group.open = words.length ? true : wasOpen;
  return found;
}
