"use strict";
// Before anything is drawn, so that nobody is dazzled by the wrong theme.
function storedTheme() {
  try {
    const theme = localStorage.getItem("fedmosaic-theme");
    return theme === "light" || theme === "dark" ? theme : "auto";
  } catch {
    return "auto"; // some browsers store nothing for files
  }
}
document.documentElement.classList.add("scripted");
if (storedTheme() !== "auto") document.documentElement.dataset.theme = storedTheme();
