import assert from "node:assert/strict";
import { test } from "node:test";
import { rowsOf, told } from "./rows.ts";

test("rows are sent as they are written, and empty lines are none", () => {
  const { text, lines } = rowsOf('{"seed": 12345678901234567890}\n\n  {"a": 1.0}\r\n');
  assert.equal(text, '[{"seed": 12345678901234567890},{"a": 1.0}]');
  assert.deepEqual(lines, [1, 3]);
});

test("a line that is no JSON object is named", () => {
  for (const bad of ["{", "[1]", "null", "word"]) {
    assert.throws(() => rowsOf(`{}\n${bad}\n`), /Line 2/);
  }
  assert.throws(() => rowsOf("\n \n"), /no line/);
});

test("what the API says of a row is told by its line", () => {
  assert.equal(
    told("bad lines: rows.1: has no messages; rows.9: x", [1, 4]),
    "bad lines: line 4: has no messages; rows.9: x",
  );
});
