// A file of JSON lines as the body of a request, each row as it is written: a number keeps every digit.

export interface Rows {
  text: string;
  /** Row -> line of the file, from 1. */
  lines: number[];
}

/** The rows of a file as a JSON array. Throws an Error that names the line that is no JSON object. */
export function rowsOf(file: string): Rows {
  const rows: string[] = [];
  const lines: number[] = [];
  for (const [at, line] of file.split("\n").entries()) {
    const row = line.trim();
    if (row === "") {
      continue;
    }
    if (!isObject(row)) {
      throw new Error(`Line ${at + 1} is no JSON object. Nothing was made.`);
    }
    rows.push(row);
    lines.push(at + 1);
  }
  if (rows.length === 0) {
    throw new Error("The file has no line.");
  }
  return { text: `[${rows.join(",")}]`, lines };
}

/** A sentence of the API about rows, told by the lines of the file. */
export function told(detail: string, lines: number[]): string {
  return detail.replaceAll(/\brows\.(\d+)/g, (whole, row: string) => {
    const line = lines[Number(row)];
    return line === undefined ? whole : `line ${line}`;
  });
}

function isObject(text: string): boolean {
  try {
    const value: unknown = JSON.parse(text);
    return typeof value === "object" && value !== null && !Array.isArray(value);
  } catch {
    return false;
  }
}
