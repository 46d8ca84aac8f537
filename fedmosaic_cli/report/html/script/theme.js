"use strict";
// Runs before the page is drawn, to avoid a flash of the wrong theme.
function storedTheme() {
  try {
    const theme = localStorage.getItem("fedmosaic-theme");
    return theme === "light" || theme === "dark" ? theme : "auto";
  } catch {
    return "auto"; // some browsers have no storage for local files
  }
}
document.documentElement.classList.add("scripted");
if (storedTheme() !== "auto") document.documentElement.dataset.theme = storedTheme();
