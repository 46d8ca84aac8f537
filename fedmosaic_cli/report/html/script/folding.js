// Sections and cards that fold. What differs from the first state is kept per page; links open what they lead to.
const FOLDS_KEY = `fedmosaic-folds ${location.pathname}`;

function startFolding() {
  const folds = [...document.querySelectorAll("details[data-fold]")];
  const initial = new Map(folds.map((fold) => [fold, fold.open]));
  const changed = () => folds.filter((fold) => fold.open !== initial.get(fold));
  const stored = new Set(storedFolds());
  for (const fold of folds) if (stored.has(fold.dataset.fold)) fold.open = !fold.open;
  document.addEventListener("toggle", (event) => {
    if (initial.has(event.target)) storeFolds(changed().map((fold) => fold.dataset.fold));
  }, true);
  const openAll = (isOpen) => {
    for (const fold of document.querySelectorAll("details:is([data-fold], .card)")) fold.open = isOpen;
  };
  byId("open-all").addEventListener("click", () => openAll(true));
  byId("close-all").addEventListener("click", () => openAll(false));
  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[href^='#']");
    if (link) reveal(byId(link.hash.slice(1))); // before the browser scrolls there
  });
  const revealTarget = () => {
    const target = byId(location.hash.slice(1));
    reveal(target);
    target?.scrollIntoView();
  };
  addEventListener("hashchange", revealTarget);
  if (location.hash) revealTarget();
}

function reveal(target) {
  const own = target?.querySelector(":scope > details[data-fold]");
  if (own) own.open = true;
  for (let node = target; node; node = node.parentElement) if (node.localName === "details") node.open = true;
}

function storedFolds() {
  try {
    return JSON.parse(localStorage.getItem(FOLDS_KEY)) ?? [];
  } catch {
    return []; // no storage, or not ours
  }
}

function storeFolds(names) {
  try {
    localStorage.setItem(FOLDS_KEY, JSON.stringify(names));
  } catch {
    // Without storage, the state is lost when the page is closed.
  }
}
