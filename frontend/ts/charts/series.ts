// Pure functions on metric series: no DOM, tested by `npm test`.
import type { Point } from "../api.ts";

export type Column = (number | null)[];

export interface Aligned {
  steps: number[];
  values: Column[];
  min: Column[];
  max: Column[];
  first: Column[];
}

/** Put series of different steps on one axis; a step a series lacks is null. */
export function align(series: Point[][]): Aligned {
  const steps = [...new Set(series.flatMap((points) => points.map((point) => point[0])))].sort((a, b) => a - b);
  const rowOf = new Map(steps.map((step, row) => [step, row]));
  const column = (points: Point[], field: 1 | 2 | 3 | 4): Column => {
    const cells: Column = new Array(steps.length).fill(null);
    for (const point of points) {
      cells[rowOf.get(point[0]) as number] = point[field];
    }
    return cells;
  };
  return {
    steps,
    values: series.map((points) => column(points, 1)),
    min: series.map((points) => column(points, 2)),
    max: series.map((points) => column(points, 3)),
    first: series.map((points) => column(points, 4)),
  };
}

/** Which steps a row is of, or its point of one series: its own, or all those whose mean stands there. */
export function stepsOf(data: Aligned, row: number, at?: number): string {
  const last = data.steps[row] as number;
  const columns = at === undefined ? data.first : [data.first[at]];
  const first = Math.min(...columns.map((column) => column?.[row] ?? last));
  return first < last ? `${first} to ${last}, mean` : String(last);
}

/** Exponential moving average without the pull towards zero at the start. `weight` 0 returns the values as they are. */
export function smooth(values: Column, weight: number): Column {
  if (weight <= 0) {
    return values;
  }
  let sum = 0;
  let mass = 0;
  return values.map((value) => {
    if (value === null) {
      return null;
    }
    sum = sum * weight + value * (1 - weight);
    mass = mass * weight + (1 - weight);
    return sum / mass;
  });
}

/** The last row of a column that has a value, at or before `upTo`, or undefined. */
export function lastRow(values: Column, upTo: number = values.length - 1): number | undefined {
  for (let row = upTo; row >= 0; row -= 1) {
    if (values[row] != null) {
      return row;
    }
  }
  return undefined;
}

/** Whether a scale from `min` to `max` leaves out some of the steps that are there. */
export function isZoomed(steps: number[], min: number | undefined, max: number | undefined): boolean {
  const [first, last] = [steps[0], steps.at(-1)];
  return first !== undefined && last !== undefined && ((min ?? first) > first || (max ?? last) < last);
}

export type Format = "number" | "percent" | "seconds" | "si" | "exponent";

/** A value as people read it: three significant digits, no noise. */
export function formatValue(value: number | null | undefined, format: Format = "number"): string {
  if (value === null || value === undefined) {
    return "–";
  }
  if (format === "percent") {
    return `${significant(value * 100)} %`;
  }
  if (format === "seconds") {
    return value < 1 && value > 0 ? `${significant(value * 1000)} ms` : `${significant(value)} s`;
  }
  if (format === "si") {
    const magnitude = Math.abs(value);
    if (magnitude >= 1e6) {
      return `${significant(value / 1e6)} M`;
    }
    if (magnitude >= 1e4) {
      return `${significant(value / 1e3)} k`;
    }
  }
  return significant(value);
}

function significant(value: number): string {
  const magnitude = Math.abs(value);
  if (magnitude !== 0 && (magnitude < 1e-3 || magnitude >= 1e7)) {
    return value.toExponential(1).replace("e-", "e−").replace("e+", "e").replace("-", "−");
  }
  const decimals = magnitude >= 100 ? 0 : magnitude >= 10 ? 1 : magnitude >= 1 ? 2 : 3;
  return value.toLocaleString("en-US", { maximumFractionDigits: decimals }).replace("-", "−");
}
