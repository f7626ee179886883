import assert from "node:assert/strict";
import test from "node:test";
import { joined } from "../api.ts";
import { align, formatValue, isZoomed, lastRow, smooth, stepsOf } from "./series.ts";

test("series of different steps share one axis and keep their gaps", () => {
  const aligned = align([
    [
      [0, 1, 1, 1, 0],
      [2, 3, 2, 4, 2],
    ],
    [[1, 5, 5, 5, 1]],
  ]);
  assert.deepEqual(aligned.steps, [0, 1, 2]);
  assert.deepEqual(aligned.values, [
    [1, null, 3],
    [null, 5, null],
  ]);
  assert.deepEqual(aligned.max[0], [1, null, 4]);
});

test("a mean is said to be of all the steps that it is of, and the value of a step of that alone", () => {
  const aligned = align([
    [
      [3, 1, 1, 1, 1],
      [6, 3, 2, 4, 4],
    ],
    [[6, 5, 5, 5, 6]],
  ]);
  assert.deepEqual([stepsOf(aligned, 0), stepsOf(aligned, 1)], ["1 to 3, mean", "4 to 6, mean"]);
  assert.deepEqual([stepsOf(aligned, 1, 0), stepsOf(aligned, 1, 1)], ["4 to 6, mean", "6"]);
});

test("smoothing keeps a constant series, and its first value, as they are", () => {
  assert.deepEqual(smooth([2, 2, null, 2], 0.9), [2, 2, null, 2]);
  assert.equal(smooth([4, 0], 0.5)[0], 4);
  assert.ok(Math.abs((smooth([4, 0], 0.5)[1] as number) - 4 / 3) < 1e-12);
});

test("a comma in a key is no end of it", () => {
  assert.equal(joined(["loss/mean", "reward/short, easy/mean"]), "loss/mean,reward/short\\, easy/mean");
});

test("weight zero does not smooth", () => {
  const values = [1, null, 3];
  assert.equal(smooth(values, 0), values);
});

test("the last row with a value is found behind gaps", () => {
  assert.equal(lastRow([1, 2, null]), 1);
  assert.equal(lastRow([null]), undefined);
});

test("at a step without a value that of the step before counts, and never a later one", () => {
  assert.equal(lastRow([1, null, null, 2], 2), 0);
  assert.equal(lastRow([1, null, null, 2], 3), 3);
  assert.equal(lastRow([null, null, 2], 1), undefined);
});

test("a chart is zoomed as long as its scale leaves out steps", () => {
  assert.ok(isZoomed([0, 1, 2, 3], 1, 3));
  assert.ok(isZoomed([0, 1, 2, 3], 0, 2));
  assert.ok(!isZoomed([0, 1, 2, 3], 0, 3));
  assert.ok(!isZoomed([5], 0, 10));
  assert.ok(!isZoomed([], undefined, undefined));
});

test("values read well in every format", () => {
  assert.equal(formatValue(0.73125), "0.731");
  assert.equal(formatValue(-12.345), "−12.3");
  assert.equal(formatValue(0.000213), "2.1e−4");
  assert.equal(formatValue(0.715, "percent"), "71.5 %");
  assert.equal(formatValue(0.0421, "seconds"), "42.1 ms");
  assert.equal(formatValue(48211, "si"), "48.2 k");
  assert.equal(formatValue(null), "–");
});
