// One websocket per page. It carries only "run R changed"; the page answers by refetching what it shows, so a
// lost message, a sleeping laptop or a restarted server can delay what is shown, never falsify it.
//
//   socket message | reconnect | tab becomes visible | every 10 s
//        `-> "run:changed" on <body>, at most once a second -> htmx regions refetch -> "run:refreshed" -> charts refetch
//
// A page that its reader may not see any more is told so by the answer to a refetch ("live:ended", or the sign-in page),
// and follows nothing from then on.

export type LiveState = "connecting" | "live" | "behind" | "paused" | "disconnected" | "ended";

export interface LiveDetail {
  state: LiveState;
  /** When the connection was lost, in milliseconds since the epoch; only when disconnected. */
  since: number;
  /** Why the server closed the connection, in its words; empty when it did not say. */
  reason: string;
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
let ended = false;
let refused = false;
let paused = false;
let inFlight = 0;
let askedAt = 0;
let answerMs = 0;
let lastEmitAt = Number.NEGATIVE_INFINITY;
let timer: number | undefined;

/** Connect for the runs that <body data-runs> names: run keys, or `*` for all. Does nothing on other pages. */
export function startLive(): void {
  runs = (document.body.dataset.runs ?? "").split(" ").filter(Boolean);
  if (runs.length === 0) {
    return;
  }
  connect();
  setInterval(changed, POLL_MS);
  document.addEventListener("visibilitychange", changed);
  window.addEventListener("online", () => !ended && socket?.readyState !== WebSocket.OPEN && connect());
  document.body.addEventListener("htmx:beforeRequest", () => {
    askedAt = performance.now();
    countRequests(1);
  });
  document.body.addEventListener("htmx:afterRequest", (event) => {
    answerMs = performance.now() - askedAt;
    countRequests(-1);
    const { xhr, successful } = (event as CustomEvent<{ xhr: XMLHttpRequest; successful: boolean }>).detail;
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
    setTimeout(() => !ended && connect(), limit / 2 + (Math.random() * limit) / 2);
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

function countRequests(change: number): void {
  inFlight = Math.max(0, inFlight + change);
  announce();
}

function announce(): void {
  document.dispatchEvent(
    new CustomEvent<LiveDetail>("live:state", { detail: { state: state(), since: lostAt, reason: lostReason } }),
  );
}

function state(): LiveState {
  if (ended) {
    return "ended";
  }
  if (paused) {
    return "paused";
  }
  if (lostAt > 0) {
    return "disconnected";
  }
  if (socket?.readyState !== WebSocket.OPEN) {
    return "connecting";
  }
  return inFlight > 0 ? "behind" : "live";
}

/** A session that ended answers every refetch with the sign-in page. */
function isSignInPage(request: XMLHttpRequest): boolean {
  return request.responseURL !== "" && new URL(request.responseURL).pathname.startsWith("/login");
}
