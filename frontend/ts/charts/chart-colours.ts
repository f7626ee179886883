// Colours for canvases, read from the style sheet so that both themes have one source.

export interface ChartColours {
  lines: string[];
  /** The same lines for raw values behind smoothed ones. */
  faint: string[];
  /** And for the band between bucket minimum and maximum. */
  bands: string[];
  text: string;
  grid: string;
  surface: string;
  font: string;
}

/** Distinct colours; a seventh series starts again with the first. */
export const LINES = 6;

export function chartColours(host: HTMLElement): ChartColours {
  // A custom property holds `light-dark(...)` as text; only a real property is computed to one colour.
  const probe = document.createElement("span");
  host.append(probe);
  const resolve = (colour: string): string => {
    probe.style.color = colour;
    return getComputedStyle(probe).color;
  };
  const lines = (percent: number): string[] =>
    Array.from({ length: LINES }, (_, at) =>
      resolve(`color-mix(in srgb, var(--series-${at}) ${percent}%, transparent)`),
    );
  const colours = {
    lines: lines(100),
    faint: lines(32),
    bands: lines(14),
    text: resolve("var(--text-3)"),
    grid: resolve("var(--line-faint)"),
    surface: resolve("var(--surface)"),
    font: `11px ${getComputedStyle(host).fontFamily}`,
  };
  probe.remove();
  return colours;
}
