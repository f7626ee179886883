// One request for all charts of the page: each chart names its keys, the store fetches them together and hands them out.
import { fetchSeries, type Point, type Series } from "../api.ts";
import { changed } from "../live/live.ts";

export interface Subscriber {
  run: string;
  keys: string[];
  /** Called with the points of every key, in the order of `keys`. */
  update(points: Point[][]): void;
  fail(message: string): void;
}

/** A chart is about 400 pixels wide: more points than that cannot be seen. */
const POINTS = 400;
/** Of one request: an answer has no more than twice as many. */
const KEYS = 100;
/** Metrics change once a step; the charts need not follow every group that settles. */
const THROTTLE_MS = 2_000;
/** As in live.ts: the slower the answer, the rarer the question. */
const REST_FACTOR = 10;
const LONGEST_MS = 10_000;

const subscribers = new Set<Subscriber>();
let pending: AbortController | undefined;
let timer: number | undefined;
let isAskedFor = false;
let lastFetchAt = Number.NEGATIVE_INFINITY;
let answerMs = 0;
let isListening = false;
/** Whether the run changed since the charts last followed: of the answers to several regions, one is enough. */
let isBehind = false;

export function subscribe(subscriber: Subscriber): () => void {
  subscribers.add(subscriber);
  if (!isListening) {
    isListening = true;
    document.body.addEventListener("run:changed", () => {
      isBehind = true;
    });
    document.body.addEventListener("run:refreshed", follow);
  }
  // Once, for all that subscribe in the same turn.
  if (!isAskedFor) {
    isAskedFor = true;
    window.setTimeout(() => {
      isAskedFor = false;
      void refresh();
    });
  }
  return () => subscribers.delete(subscriber);
}

/**
 * Only ever right after the page's own regions were answered: a page that may not be seen any more learns so from them,
 * quietly, where a refused fetch is an error on the console. Too early to ask again is a reason to ask for both later.
 */
function follow(): void {
  if (!isBehind) {
    return;
  }
  isBehind = false;
  const wait = lastFetchAt + Math.min(LONGEST_MS, Math.max(THROTTLE_MS, answerMs * REST_FACTOR)) - performance.now();
  if (wait <= 0) {
    clearTimeout(timer);
    timer = undefined;
    void refresh();
  } else {
    timer ??= window.setTimeout(() => {
      timer = undefined;
      changed();
    }, wait);
  }
}

async function refresh(): Promise<void> {
  pending?.abort();
  lastFetchAt = performance.now();
  const controller = new AbortController();
  pending = controller;
  const runs = Map.groupBy(subscribers, (subscriber) => subscriber.run);
  for (const [run, members] of runs) {
    const keys = [...new Set(members.flatMap((member) => member.keys))];
    try {
      const askedAt = performance.now();
      const series: Series = {};
      for (let at = 0; at < keys.length; at += KEYS) {
        Object.assign(series, await fetchSeries(run, keys.slice(at, at + KEYS), POINTS, controller.signal));
      }
      hand(series, members);
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
