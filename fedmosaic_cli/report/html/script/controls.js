// Theme button, copy buttons, and the current section in the navigation.
function startTheme(changed) {
  const button = byId("theme");
  const show = (theme) => {
    if (theme === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    button.textContent = `Theme: ${theme}`;
    changed();
  };
  let theme = storedTheme();
  button.hidden = false;
  show(theme);
  button.addEventListener("click", () => {
    theme = { auto: "light", light: "dark", dark: "auto" }[theme];
    try {
      localStorage.setItem("fedmosaic-theme", theme);
    } catch {
      // Without storage, the choice is lost when the page is closed.
    }
    show(theme);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", changed);
}

function startCopying() {
  document.addEventListener("click", async (event) => {
    const button = event.target.closest("button.copy");
    if (!button) return;
    const all = button.classList.contains("all");
    const codes = [...(all ? button.closest(".fill") : button.parentElement).querySelectorAll("code")];
    const isCopied = await copyText(codes.map((code) => code.textContent).join("\n"));
    button.textContent = isCopied ? "Copied" : "Not copied";
    setTimeout(() => (button.textContent = all ? "Copy all" : "Copy"), 1500);
  });
}

async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // Some browsers have no clipboard for local files.
    const area = element("textarea", { readonly: "" }, text);
    document.body.append(area);
    area.select();
    const isCopied = document.execCommand("copy");
    area.remove();
    return isCopied;
  }
}

// A gradient at the edge shows that a box scrolls.
function startScrollHints() {
  document.querySelectorAll("nav, .scroll, figure").forEach(hintScrolling);
}

function hintScrolling(box) {
  const update = () => {
    box.classList.toggle("more-left", box.scrollLeft > 1);
    box.classList.toggle("more-right", box.scrollWidth - box.clientWidth - box.scrollLeft > 1);
  };
  box.addEventListener("scroll", update, { passive: true });
  new ResizeObserver(update).observe(box);
}

function startSections() {
  const links = new Map([...document.querySelectorAll("nav a")].map((link) => [link.hash.slice(1), link]));
  const seen = new IntersectionObserver((entries) => {
    for (const { target, isIntersecting } of entries) {
      if (!isIntersecting) continue;
      links.forEach((link) => link.removeAttribute("aria-current"));
      links.get(target.id)?.setAttribute("aria-current", "true");
    }
  }, { rootMargin: "-15% 0px -80% 0px" });
  document.querySelectorAll("main > section").forEach((section) => seen.observe(section));
}
