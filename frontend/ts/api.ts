// Typed reads of the REST API with the cookies of the session.

/** One bucket of a series: the step it ends at, its mean, the extremes inside it, and the step it begins at. */
export type Point = [step: number, value: number, min: number, max: number, first: number];
export type Series = Record<string, Point[]>;

export class ApiError extends Error {
  readonly status: number;

  constructor(status: number, message: string) {
    super(message);
    this.status = status;
  }
}

/** Series of a run, bucketed by the server to at most `points` points each. */
export async function fetchSeries(run: string, keys: string[], points: number, signal: AbortSignal): Promise<Series> {
  const query = new URLSearchParams({ keys: joined(keys), points: String(points) });
  const body = await get<{ series: Series }>(`/api/v1/runs/${encodeURIComponent(run)}/metrics?${query}`, signal);
  return body.series;
}

/** Keys as the API parts them: an environment may have a comma in its name. */
export function joined(keys: string[]): string {
  return keys.map((key) => key.replaceAll(",", "\\,")).join(",");
}

async function get<T>(url: string, signal: AbortSignal): Promise<T> {
  const response = await fetch(url, { headers: { Accept: "application/json" }, signal });
  if (!response.ok) {
    throw new ApiError(response.status, `${response.status} ${response.statusText}`);
  }
  return (await response.json()) as T;
}
