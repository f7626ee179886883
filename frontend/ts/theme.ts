// Runs before the first paint: a stored theme must never flash. No theme stored means: as the system says.
const stored = localStorage.getItem("rollyard.theme");
if (stored === "light" || stored === "dark") {
  document.documentElement.dataset.theme = stored;
}
