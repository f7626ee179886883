// <metric-chart run="key" series='[["reward/mean", "all"], ...]'>: one live uPlot chart with its legend.
// Attributes: format (see series.ts), floor and ceiling (range that is always shown), steps-url (a click on a step opens
// it), empty (what to say before the first point). The latest values are in aria-label: a canvas says nothing to a
// screen reader, or to a test.
import uPlot from "uplot";
import type { Point } from "../api.ts";
import { showsTables, smoothing } from "../preferences.ts";
import { chartColours, LINES } from "./chart-colours.ts";
import { subscribe } from "./metric-store.ts";
import { type Aligned, align, type Format, formatValue, isZoomed, lastRow, smooth, stepsOf } from "./series.ts";

const HEIGHT_PX = 148;
const TABLE_ROWS = 100;
/** A curve of fewer points is not noisy, it is sparse: its points are marked and never smoothed. */
const LEAST_SMOOTHED = 16;
/** A press that moves less than this is a click on a step, not a zoom. */
const CLICK_SLOP_PX = 4;
/** A second click that comes sooner makes it a double-click, which undoes a zoom. */
const DOUBLE_CLICK_MS = 300;

class MetricChart extends HTMLElement {
  #labels: string[] = [];
  #data: Aligned | undefined;
  #plot: uPlot | undefined;
  #legend = document.createElement("ul");
  #canvas = document.createElement("div");
  /** Around the table that stands in for the curve: it stays while its rows change, with the focus and where it is
   * scrolled to. */
  #box = document.createElement("div");
  #note = document.createElement("p");
  #unsubscribe: (() => void) | undefined;
  #resize: ResizeObserver | undefined;
  #opening: number | undefined;

  connectedCallback(): void {
    const series = JSON.parse(this.getAttribute("series") ?? "[]") as [string, string][];
    this.#labels = series.map(([, label]) => label);
    this.#legend.className = "chart-legend";
    this.#legend.setAttribute("aria-hidden", "true");
    this.#canvas.className = "chart-canvas";
    this.#box.className = "chart-table";
    this.#box.tabIndex = 0;
    this.#box.setAttribute("role", "region");
    this.#box.setAttribute("aria-label", `${this.getAttribute("title-text")} as a table`);
    this.#note.className = "chart-note";
    this.#note.hidden = true;
    this.setAttribute("role", "img");
    this.replaceChildren(this.#legend, this.#canvas, this.#note);
    this.#legendFor(undefined);
    this.#describe();
    this.#resize = new ResizeObserver(() => this.#fit());
    this.#resize.observe(this);
    document.addEventListener("theme:changed", this.#rebuild);
    document.addEventListener("charts:changed", this.#rebuild);
    this.#unsubscribe = subscribe({
      run: this.getAttribute("run") ?? "",
      keys: series.map(([key]) => key),
      update: (points) => this.#update(points),
      fail: (message) => this.#say(`Not refreshed: ${message}`),
    });
  }

  disconnectedCallback(): void {
    this.#unsubscribe?.();
    this.#resize?.disconnect();
    this.#plot?.destroy();
    this.#plot = undefined;
    clearTimeout(this.#opening);
    document.removeEventListener("theme:changed", this.#rebuild);
    document.removeEventListener("charts:changed", this.#rebuild);
  }

  get #format(): Format {
    return (this.getAttribute("format") as Format | null) ?? "number";
  }

  #update(points: Point[][]): void {
    const before = this.#data?.steps ?? [];
    this.#data = align(points);
    this.dataset.points = String(this.#data.steps.length);
    this.#describe();
    if (this.#data.steps.length === 0) {
      this.#say(this.getAttribute("empty") ?? "No points yet");
      return;
    }
    this.#note.hidden = true;
    if (showsTables() || !this.#plot || before.length === 0) {
      this.#rebuild();
    } else {
      // Asked of the plot: charts are zoomed together, and the others are told of it by none of their events.
      const { min, max } = this.#plot.scales.x ?? {};
      const stays = isZoomed(before, min, max);
      this.#plot.setData(this.#columns(), !stays);
      if (stays) {
        this.#plot.redraw();
      }
      this.#legendFor(this.#plot.cursor.idx ?? undefined);
    }
  }

  #rebuild = (): void => {
    this.#plot?.destroy();
    this.#plot = undefined;
    this.setAttribute("role", showsTables() ? "group" : "img");
    if (this.#data?.steps.length && showsTables()) {
      this.#box.replaceChildren(this.#table(this.#data));
      if (!this.#canvas.contains(this.#box)) {
        this.#canvas.replaceChildren(this.#box);
      }
      return;
    }
    this.#canvas.replaceChildren();
    if (this.#data?.steps.length) {
      this.#plot = new uPlot(this.#options(), this.#columns(), this.#canvas);
      this.#openStepOnClick(this.#plot);
      this.#legendFor(undefined);
    }
  };

  /** The newest points as numbers, newest first: for those who cannot see the curve, or want the value. */
  #table(data: Aligned): HTMLElement {
    const table = document.createElement("table");
    const head = table.createTHead().insertRow();
    for (const text of ["step", ...this.#labels]) {
      const cell = document.createElement("th");
      cell.scope = "col";
      cell.textContent = text;
      head.append(cell);
    }
    const body = table.createTBody();
    for (let row = data.steps.length - 1; row >= Math.max(0, data.steps.length - TABLE_ROWS); row -= 1) {
      const cells = body.insertRow();
      const steps = stepsOf(data, row);
      cells.insertCell().textContent = steps;
      data.values.forEach((values, at) => {
        const own = values[row] == null ? steps : stepsOf(data, row, at);
        const value = formatValue(values[row], this.#format);
        cells.insertCell().textContent = own === steps ? value : `${value} (${own})`;
      });
    }
    return table;
  }

  /** Steps, then per label: smoothed values, raw values, bucket minimum and maximum. */
  #columns(): uPlot.AlignedData {
    const data = this.#data as Aligned;
    const weight = data.steps.length < LEAST_SMOOTHED ? 0 : smoothing();
    const columns = data.values.flatMap((values, at) => [
      smooth(values, weight),
      weight > 0 ? values : values.map(() => null),
      data.min[at] ?? [],
      data.max[at] ?? [],
    ]);
    return [data.steps, ...columns] as uPlot.AlignedData;
  }

  #options(): uPlot.Options {
    const colours = chartColours(this);
    const series: uPlot.Series[] = [{}];
    const bands: uPlot.Band[] = [];
    this.#labels.forEach((label, at) => {
      const colour = colours.lines[at % LINES] as string;
      const hidden = { stroke: "transparent", points: { show: false }, spanGaps: true };
      series.push({
        label,
        stroke: colour,
        width: 1.75,
        spanGaps: true,
        points: { size: 4.5, fill: colour, show: () => (this.#data?.steps.length ?? 0) < LEAST_SMOOTHED },
      });
      series.push({ stroke: colours.faint[at % LINES] as string, width: 1, spanGaps: true, points: { show: false } });
      series.push(hidden, hidden);
      bands.push({ series: [at * 4 + 4, at * 4 + 3], fill: colours.bands[at % LINES] as string });
    });
    const axis: uPlot.Axis = {
      stroke: colours.text,
      font: colours.font,
      grid: { stroke: colours.grid, width: 1 },
      ticks: { show: false },
    };
    return {
      width: this.clientWidth,
      height: HEIGHT_PX,
      padding: [8, 18, 0, 0], // room for half of a label that stands below the right end
      series,
      bands,
      legend: { show: false },
      cursor: {
        sync: { key: "run" },
        points: { size: 7, width: 2, stroke: colours.surface, fill: (plot, at) => strokeOf(plot, at) },
        drag: { x: true, y: false, dist: CLICK_SLOP_PX },
      },
      scales: { x: { time: false }, y: { range: (_, low, high) => this.#range(low, high) } },
      axes: [
        {
          ...axis,
          grid: { show: false },
          size: 24,
          gap: 4,
          space: 44,
          incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5],
        },
        {
          ...axis,
          size: 46,
          gap: 6,
          space: 30,
          values: (_, splits) => splits.map((split) => (split === null ? "" : formatValue(split, this.#format))),
        },
      ],
      hooks: {
        setCursor: [(plot) => this.#legendFor(plot.cursor.idx ?? undefined)],
      },
    };
  }

  #range(low: number, high: number): uPlot.Range.MinMax {
    const floor = this.getAttribute("floor");
    const ceiling = this.getAttribute("ceiling");
    let bottom = Math.min(low, floor === null ? low : Number(floor));
    let top = Math.max(high, ceiling === null ? high : Number(ceiling));
    if (bottom === top) {
      const pad = Math.abs(top) * 0.1 || 1;
      bottom -= floor !== null && bottom >= Number(floor) ? 0 : pad;
      top += pad;
    }
    const pad = (top - bottom) * 0.06;
    return [bottom - (floor !== null && bottom >= Number(floor) ? 0 : pad), top + pad];
  }

  /** Values at a row, else the newest; of a series that has none there the one before, with its step. */
  #legendFor(row: number | undefined): void {
    const data = this.#data;
    const upTo = row ?? (data?.steps.length ?? 0) - 1;
    const steps = data?.steps[upTo] === undefined ? "" : stepsOf(data, upTo);
    // Where nobody points, the newest step needs no name, unless it is several.
    const isNamed = steps !== "" && (row !== undefined || steps !== String(data?.steps[upTo]));
    const items = this.#labels.map((label, at) => {
      const values = data?.values[at] ?? [];
      const shown = lastRow(values, row);
      const item = document.createElement("li");
      const name = document.createElement("span");
      name.textContent = label;
      const value = document.createElement("b");
      value.textContent = formatValue(shown === undefined ? null : values[shown], this.#format);
      item.className = `series-${at % LINES}`;
      item.append(name, value);
      if (isNamed && data && shown !== undefined && stepsOf(data, shown, at) !== steps) {
        item.append(`at ${stepsOf(data, shown, at)}`);
      }
      return item;
    });
    if (isNamed) {
      const step = document.createElement("li");
      step.className = "chart-step";
      step.textContent = `step ${steps}`;
      items.push(step);
    }
    this.#legend.replaceChildren(...items);
  }

  #describe(): void {
    const title = this.getAttribute("title-text") ?? "Chart";
    const parts = this.#labels.map((label, at) => {
      const values = this.#data?.values[at] ?? [];
      const row = lastRow(values);
      return row === undefined || !this.#data
        ? `${label}: no points yet`
        : `${label}: ${formatValue(values[row], this.#format)} at step ${stepsOf(this.#data, row, at)}`;
    });
    this.setAttribute("aria-label", `${title}. ${parts.join(", ")}`);
  }

  #say(text: string): void {
    this.#note.textContent = text;
    this.#note.hidden = false;
  }

  #fit(): void {
    if (this.#plot && this.clientWidth > 0 && this.clientWidth !== this.#plot.width) {
      this.#plot.setSize({ width: this.clientWidth, height: HEIGHT_PX });
    }
  }

  #openStepOnClick(plot: uPlot): void {
    const url = this.getAttribute("steps-url");
    if (!url) {
      return;
    }
    let pressedAt = 0;
    plot.over.classList.add("opens-step");
    plot.over.addEventListener("mousedown", (event) => {
      pressedAt = event.clientX;
    });
    plot.over.addEventListener("click", (event) => {
      clearTimeout(this.#opening);
      const step = plot.cursor.idx == null ? undefined : this.#data?.steps[plot.cursor.idx];
      if (step !== undefined && event.detail === 1 && Math.abs(event.clientX - pressedAt) < CLICK_SLOP_PX) {
        this.#opening = window.setTimeout(() => location.assign(`${url}${step}/`), DOUBLE_CLICK_MS);
      }
    });
  }
}

function strokeOf(plot: uPlot, at: number): string {
  const stroke = plot.series[at]?.stroke;
  return (typeof stroke === "function" ? stroke(plot, at) : stroke) as string;
}

customElements.define("metric-chart", MetricChart);
