// One websocket per page. It carries only "run R changed"; the page answers by refetching what it shows, so a
// lost message, a sleeping laptop or a restarted server can delay what is shown, never falsify it.
//
//   socket message | reconnect | tab becomes visible | every 10 s
//        `-> "run:changed" on <body>, at most once a second -> htmx regions refetch -> "run:refreshed" -> charts refetch
//
// A page that its reader may not see any more is told so by the answer to a refetch ("live:ended", or the sign-in page),
// and follows nothing from then on.

import { isSignInPage } from "../session.ts";

export type LiveState = "connecting" | "live" | "behind" | "paused" | "disconnected" | "ended";

export interface LiveDetail {
  state: LiveState;
  /** Since when the page stands still, in milliseconds since the epoch; only when disconnected. */
  since: number;
  /** Why: what the server closed the connection with, or answered a refetch; empty when it said nothing. */
  reason: string;
}

/** What htmx says of a request that is over. */
interface Answer {
  xhr: XMLHttpRequest;
  successful?: boolean;
  /** The region that its answer is for. */
  target: Element;
}

const THROTTLE_MS = 1_000;
/** Of its time a page spends at most one part in this many on refetching: a busy server is asked less often. */
const REST_FACTOR = 5;
const POLL_MS = 10_000;
const LONGEST_RETRY_MS = 15_000;
/** What the server closes with when this page may not listen. */
const FORBIDDEN = 4403;
const TOO_MANY = 4429;

let runs: string[] = [];
let socket: WebSocket | undefined;
let retries = 0;
let lostAt = 0;
let lostReason = "";
/** What was not answered when it was last asked for: an open socket says nothing of that. */
const failed = new Set<Element>();
let failedAt = 0;
let failedReason = "";
let ended = false;
let refused = false;
let paused = false;
let inFlight = 0;
let askedAt = 0;
let answerMs = 0;
let lastEmitAt = Number.NEGATIVE_INFINITY;
let timer: number | undefined;
let retry: number | undefined;

/** Connect for the runs that <body data-runs> names: run keys, or `*` for all. Does nothing on other pages. */
export function startLive(): void {
  runs = (document.body.dataset.runs ?? "").split(" ").filter(Boolean);
  if (runs.length === 0) {
    return;
  }
  connect();
  setInterval(changed, POLL_MS);
  document.addEventListener("visibilitychange", changed);
  window.addEventListener("online", () => !ended && !refused && socket?.readyState !== WebSocket.OPEN && connect());
  document.body.addEventListener("htmx:beforeRequest", () => {
    askedAt = performance.now();
    countRequests(1);
  });
  document.body.addEventListener("htmx:afterRequest", (event) => {
    answerMs = performance.now() - askedAt;
    const { xhr, successful, target } = (event as CustomEvent<Answer>).detail;
    if (successful && failed.delete(target) && failed.size === 0) {
      failedAt = 0;
      failedReason = "";
    }
    countRequests(-1);
    if (isSignInPage(xhr)) {
      end();
      location.replace(`/login/?ended=1&next=${encodeURIComponent(location.pathname + location.search)}`);
    } else if (successful && !ended) {
      document.body.dispatchEvent(new CustomEvent("run:refreshed"));
      if (refused) {
        refused = false;
        connect();
      }
    }
  });
  // Not what was given up for a newer request: htmx calls that an abort.
  for (const name of ["htmx:responseError", "htmx:sendError", "htmx:timeout"]) {
    document.body.addEventListener(name, (event) => fail((event as CustomEvent<Answer>).detail));
  }
  document.body.addEventListener("live:ended", end);
}

/** Stop or resume following changes; resuming catches up at once. */
export function setPaused(value: boolean): void {
  paused = value;
  announce();
  if (!paused) {
    changed();
  }
}

export function isPaused(): boolean {
  return paused;
}

function connect(): void {
  // One at a time: the network may be there again before the next attempt is due, or while one hangs.
  clearTimeout(retry);
  socket?.close();
  const scheme = location.protocol === "https:" ? "wss" : "ws";
  const opened = new WebSocket(`${scheme}://${location.host}/ws/`);
  socket = opened;
  opened.addEventListener("open", () => {
    opened.send(JSON.stringify({ subscribe: runs }));
    const isReturn = lostAt > 0;
    retries = 0;
    lostAt = 0;
    lostReason = "";
    announce();
    if (isReturn) {
      changed();
    }
  });
  opened.addEventListener("message", () => changed());
  opened.addEventListener("close", ({ code, reason }) => {
    if (socket !== opened || ended) {
      return;
    }
    lostAt ||= Date.now();
    lostReason = reason;
    announce();
    if (code === FORBIDDEN) {
      // Whether the page may go on, the answer to its next refetch says; it connects again only after a good one.
      refused = true;
      changed();
      return;
    }
    const limit = code === TOO_MANY ? LONGEST_RETRY_MS : Math.min(LONGEST_RETRY_MS, 500 * 2 ** retries);
    retries += 1;
    // Jitter: a restarted server must not meet every open tab in the same moment.
    retry = window.setTimeout(() => !ended && connect(), limit / 2 + (Math.random() * limit) / 2);
  });
}

function end(): void {
  ended = true;
  clearTimeout(timer);
  socket?.close();
  announce();
}

/** Have what the page shows asked for again, soon: at once where nothing was for a while. */
export function changed(): void {
  // A hidden page catches up when it is looked at.
  if (ended || paused || timer !== undefined || document.visibilityState === "hidden") {
    return;
  }
  const spacing = Math.min(POLL_MS, Math.max(THROTTLE_MS, answerMs * REST_FACTOR));
  const wait = Math.max(0, lastEmitAt + spacing - performance.now());
  timer = window.setTimeout(() => {
    timer = undefined;
    lastEmitAt = performance.now();
    document.body.dispatchEvent(new CustomEvent("run:changed"));
  }, wait);
}

function fail({ xhr, target }: Answer): void {
  failedAt ||= Date.now();
  failedReason = xhr.status > 0 ? `The server answered ${xhr.status}` : "The server did not answer";
  failed.add(target);
  announce();
}

function countRequests(change: number): void {
  inFlight = Math.max(0, inFlight + change);
  announce();
}

function announce(): void {
  const detail = { state: state(), since: lostAt || failedAt, reason: lostReason || failedReason };
  document.dispatchEvent(new CustomEvent<LiveDetail>("live:state", { detail }));
}

function state(): LiveState {
  if (ended) {
    return "ended";
  }
  if (paused) {
    return "paused";
  }
  if (lostAt > 0 || failedAt > 0) {
    return "disconnected";
  }
  if (socket?.readyState !== WebSocket.OPEN) {
    return "connecting";
  }
  return inFlight > 0 ? "behind" : "live";
}
