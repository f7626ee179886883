// One request for all charts of the page: each chart names its keys, the store fetches them together and hands them out.
import { fetchSeries, type Point, type Series } from "../api.ts";

export interface Subscriber {
  run: string;
  keys: string[];
  /** Called with the points of every key, in the order of `keys`. */
  update(points: Point[][]): void;
  fail(message: string): void;
}

/** A chart is about 400 pixels wide: more points than that cannot be seen. */
const POINTS = 400;
/** Metrics change once a step; the charts need not follow every group that settles. */
const THROTTLE_MS = 2_000;
/** As in live.ts: the slower the answer, the rarer the question. */
const REST_FACTOR = 10;
const LONGEST_MS = 10_000;

const subscribers = new Set<Subscriber>();
let pending: AbortController | undefined;
let timer: number | undefined;
let lastFetchAt = Number.NEGATIVE_INFINITY;
let answerMs = 0;
let isListening = false;

export function subscribe(subscriber: Subscriber): () => void {
  subscribers.add(subscriber);
  if (!isListening) {
    isListening = true;
    // Not at once when a run changed: a page that may not be seen any more learns so from its own refetch, quietly.
    document.body.addEventListener("run:refreshed", () =>
      schedule(Math.min(LONGEST_MS, Math.max(THROTTLE_MS, answerMs * REST_FACTOR))),
    );
  }
  schedule(0);
  return () => subscribers.delete(subscriber);
}

function schedule(spacing: number): void {
  if (timer !== undefined) {
    return;
  }
  const wait = Math.max(0, lastFetchAt + spacing - performance.now());
  timer = window.setTimeout(() => {
    timer = undefined;
    lastFetchAt = performance.now();
    void refresh();
  }, wait);
}

async function refresh(): Promise<void> {
  pending?.abort();
  const controller = new AbortController();
  pending = controller;
  const runs = Map.groupBy(subscribers, (subscriber) => subscriber.run);
  for (const [run, members] of runs) {
    const keys = [...new Set(members.flatMap((member) => member.keys))];
    try {
      const askedAt = performance.now();
      hand(await fetchSeries(run, keys, POINTS, controller.signal), members);
      answerMs = performance.now() - askedAt;
    } catch (error) {
      if (controller.signal.aborted) {
        return;
      }
      // What is drawn stays: old points with a note beat an empty chart.
      for (const member of members) {
        member.fail(error instanceof Error ? error.message : String(error));
      }
    }
  }
}

function hand(series: Series, members: Subscriber[]): void {
  for (const member of members) {
    member.update(member.keys.map((key) => series[key] ?? []));
  }
}
