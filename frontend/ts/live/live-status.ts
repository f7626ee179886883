// <live-status>: says whether the page follows the run, and pauses it on click.
import { isPaused, type LiveDetail, type LiveState, setPaused } from "./live.ts";

const LABELS: Record<LiveState, string> = {
  connecting: "Connecting",
  live: "Live",
  behind: "Live",
  paused: "Paused",
  disconnected: "Disconnected",
  ended: "Ended",
};
/** Catching up is shown only when it lasts: a dot that blinks with every refetch says nothing. */
const BEHIND_AFTER_MS = 600;

class LiveStatus extends HTMLElement {
  #button = document.createElement("button");
  #label = document.createElement("span");
  #behind: number | undefined;

  connectedCallback(): void {
    const dot = document.createElement("span");
    dot.className = "dot";
    this.#button.type = "button";
    this.#button.className = "live-status";
    this.#button.append(dot, this.#label);
    this.#button.addEventListener("click", () => setPaused(!isPaused()));
    this.setAttribute("role", "status");
    this.replaceChildren(this.#button);
    document.addEventListener("live:state", this.#follow);
    this.#show("connecting", 0, "");
  }

  disconnectedCallback(): void {
    document.removeEventListener("live:state", this.#follow);
  }

  #follow = (event: Event): void => {
    const { state, since, reason } = (event as CustomEvent<LiveDetail>).detail;
    clearTimeout(this.#behind);
    if (state === "behind") {
      this.#behind = window.setTimeout(() => this.#show("behind", since, reason), BEHIND_AFTER_MS);
    } else {
      this.#show(state, since, reason);
    }
  };

  #show(state: LiveState, since: number, reason: string): void {
    let text = state === "behind" ? "Catching up" : LABELS[state];
    if (state === "disconnected") {
      text += ` since ${new Date(since).toISOString().slice(11, 19)} UTC`;
    }
    this.#button.disabled = state === "ended";
    if (this.dataset.state !== state || this.#label.textContent !== text) {
      this.dataset.state = state;
      this.#label.textContent = text;
      this.#button.title =
        state === "paused"
          ? "Follow the run again"
          : state === "disconnected"
            ? `${reason || "Reconnecting"}; what you see is asked for again every 10 seconds meanwhile`
            : state === "ended"
              ? "This page follows nothing any more"
              : "Stop following, to read in peace";
    }
  }
}

customElements.define("live-status", LiveStatus);
