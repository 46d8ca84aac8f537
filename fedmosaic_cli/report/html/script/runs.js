function startRuns() {
  document.addEventListener("toggle", showConfiguration, true);
  const groups = [...document.querySelectorAll(".card.runs")].map((group) => ({
    group,
    wasOpen: group.open,
    label: group.querySelector("h3").textContent,
    runs: [...group.querySelectorAll(":scope > .run")],
  }));
  let texts = null; // computed on first use, because there may be thousands of runs
  byId("runs-filter").addEventListener("input", (event) => {
    texts ??= groups.map(({ label, runs }) => runs.map((run) => `${label} ${run.textContent}`.toLowerCase()));
    const words = event.target.value.toLowerCase().split(/\s+/).filter(Boolean);
    const found = groups.map((one, number) => filterGroup(one, texts[number], words));
    byId("runs-found").textContent = words.length ? `${found.reduce((sum, count) => sum + count, 0)} found` : "";
  });
}

// Configurations are embedded once and inserted when they are opened.
function showConfiguration(event) {
  const pre = event.target.querySelector?.(":scope > pre[data-text]");
  if (pre && event.target.open) pre.textContent = numbers.texts[Number(pre.dataset.text)];
}

function filterGroup({ group, wasOpen, runs }, texts, words) {
  runs.forEach((run, number) => (run.hidden = !words.every((word) => texts[number].includes(word))));
  const found = runs.filter((run) => !run.hidden).length;
  group.hidden = found === 0;
  group.open = words.length ? true : wasOpen;
  return found;
}
