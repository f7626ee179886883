// What a person prefers on this machine: the theme, and how much curves are smoothed.

type Theme = "system" | "light" | "dark";
const NEXT: Record<Theme, Theme> = { system: "light", light: "dark", dark: "system" };

export function startPreferences(): void {
  for (const button of document.querySelectorAll<HTMLButtonElement>("[data-theme-toggle]")) {
    button.addEventListener("click", () => {
      setTheme(NEXT[currentTheme()]);
      describe(button);
    });
    describe(button);
  }
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", themeChanged);
  for (const select of document.querySelectorAll<HTMLSelectElement>("select[data-smoothing]")) {
    select.value = localStorage.getItem("rollyard.smoothing") ?? "0";
    select.addEventListener("change", () => {
      localStorage.setItem("rollyard.smoothing", select.value);
      document.dispatchEvent(new CustomEvent("charts:changed"));
    });
  }
  for (const box of document.querySelectorAll<HTMLInputElement>("input[data-chart-tables]")) {
    box.checked = showsTables();
    box.addEventListener("change", () => {
      localStorage.setItem("rollyard.tables", box.checked ? "yes" : "no");
      document.dispatchEvent(new CustomEvent("charts:changed"));
    });
  }
}

/** Whether charts are shown as tables of numbers. */
export function showsTables(): boolean {
  return localStorage.getItem("rollyard.tables") === "yes";
}

/** Weight of the moving average, 0 (none) to below 1. */
export function smoothing(): number {
  return Number(localStorage.getItem("rollyard.smoothing") ?? 0) || 0;
}

function currentTheme(): Theme {
  return (document.documentElement.dataset.theme as Theme | undefined) ?? "system";
}

function setTheme(theme: Theme): void {
  if (theme === "system") {
    localStorage.removeItem("rollyard.theme");
    delete document.documentElement.dataset.theme;
  } else {
    localStorage.setItem("rollyard.theme", theme);
    document.documentElement.dataset.theme = theme;
  }
  themeChanged();
}

function themeChanged(): void {
  // Canvases do not follow CSS by themselves.
  document.dispatchEvent(new CustomEvent("theme:changed"));
}

function describe(button: HTMLButtonElement): void {
  const theme = currentTheme();
  button.dataset.current = theme;
  button.setAttribute("aria-label", `Theme: ${theme}`);
  button.title = `Theme: ${theme}. Click for ${NEXT[currentTheme()]}.`;
}
