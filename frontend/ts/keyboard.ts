// j / k walk over the rollouts, Enter opens one, / searches, g r goes to the runs, ? shows all of this.
import { pressKey } from "./annotate.ts";
import { openDialog } from "./dialogs.ts";

const ITEMS = "[data-keyboard-item]";
let current = "";

export function startKeyboard(): void {
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) {
      return;
    }
    if (isTyping(event.target)) {
      if (event.key === "Escape") {
        (event.target as HTMLElement).blur();
      }
      return;
    }
    if (document.querySelector("dialog[open]")) {
      return;
    }
    // A held key speaks once: what it would say next is of something nobody has looked at. Only a walk goes on.
    if (event.repeat && event.key !== "j" && event.key !== "k") {
      return;
    }
    // Enter on a focused control is the control's own.
    const isOfControl = event.key === "Enter" && document.activeElement !== document.body;
    if ((!isOfControl && pressKey(event.key)) || handle(event.key)) {
      event.preventDefault();
    }
  });
  // A region that was swapped has new rows: the mark follows the row's id.
  document.body.addEventListener("htmx:afterSettle", () => mark(current, false));
}

function handle(key: string): boolean {
  switch (key) {
    case "j":
      return step(1);
    case "k":
      return step(-1);
    case "Enter": {
      const link = document.getElementById(current)?.querySelector<HTMLAnchorElement>("a[data-open]");
      // Enter on a focused control is the control's own.
      if (!link || (document.activeElement !== document.body && document.activeElement?.id !== current)) {
        return false;
      }
      link.click();
      return true;
    }
    case "/": {
      const search = document.querySelector<HTMLInputElement>("[data-search]");
      search?.focus();
      search?.select();
      return search !== null;
    }
    case "?":
      openDialog("help");
      return true;
    case "n": {
      const launch = document.querySelector<HTMLAnchorElement>("a[data-launch]");
      launch?.click();
      return launch !== null;
    }
    default:
      return false;
  }
}

function step(by: 1 | -1): boolean {
  const items = [...document.querySelectorAll<HTMLElement>(ITEMS)].filter((item) => item.offsetParent !== null);
  if (items.length === 0) {
    return false;
  }
  const at = items.findIndex((item) => item.id === current);
  const next = at < 0 ? (by > 0 ? 0 : items.length - 1) : Math.min(items.length - 1, Math.max(0, at + by));
  mark((items[next] as HTMLElement).id, true);
  return true;
}

function mark(id: string, scroll: boolean): void {
  for (const item of document.querySelectorAll<HTMLElement>(`${ITEMS}[aria-current]`)) {
    if (item.id !== id) {
      item.removeAttribute("aria-current");
    }
  }
  const item = id ? document.getElementById(id) : null;
  if (!item) {
    return;
  }
  current = id;
  item.setAttribute("aria-current", "true");
  if (scroll) {
    item.tabIndex = -1;
    item.focus({ preventScroll: true });
    item.scrollIntoView({ block: "nearest" });
  }
}

function isTyping(target: EventTarget | null): boolean {
  return (
    target instanceof HTMLElement &&
    (target.isContentEditable || target.matches("input:not([type=checkbox],[type=radio]), textarea, select"))
  );
}
