// One key, one word: what has a key in data-key is pressed, ticked or written into by it. A draft survives a reload.

/** Press what a key stands for on this page. */
export function pressKey(key: string): boolean {
  const target = document.querySelector<HTMLElement>(`[data-key~="${CSS.escape(key)}"]`);
  if (!target || target.matches(":disabled")) {
    return false;
  }
  if (target.matches("textarea, input:not([type=checkbox])")) {
    target.closest("details")?.setAttribute("open", "");
    target.focus();
  } else {
    target.click();
  }
  return true;
}

const PREFIX = "draft:";

/** Keep what is written into a form until another one takes its place: a lost connection loses no word. */
export function startDrafts(): void {
  const form = document.querySelector<HTMLFormElement>("form[data-draft]");
  const name = PREFIX + (form?.dataset.draft ?? "");
  for (const key of Object.keys(localStorage)) {
    if (form && key.startsWith(PREFIX) && key !== name) {
      localStorage.removeItem(key);
    }
  }
  if (!form) {
    return;
  }
  restore(form, localStorage.getItem(name));
  form.addEventListener("input", () => localStorage.setItem(name, JSON.stringify(written(form))));
}

interface Draft {
  note: string;
  score: string;
  tags: string[];
  /** What is put in the place of a reply, and of what was thought before it; undefined: it says what it said. */
  edited?: string;
  thoughts?: string;
}

function written(form: HTMLFormElement): Draft {
  const data = new FormData(form);
  const corrected = corrections(form).filter((area) => area.value !== area.defaultValue);
  return {
    note: String(data.get("note") ?? ""),
    score: String(data.get("score") ?? ""),
    tags: data.getAll("tag").map(String),
    ...Object.fromEntries(corrected.map((area) => [area.name, area.value])),
  };
}

function corrections(form: HTMLFormElement): HTMLTextAreaElement[] {
  return [...form.querySelectorAll<HTMLTextAreaElement>("[name=edited], [name=thoughts]")];
}

function restore(form: HTMLFormElement, stored: string | null): void {
  if (stored === null) {
    return;
  }
  const draft = JSON.parse(stored) as Draft;
  for (const field of form.querySelectorAll<HTMLInputElement | HTMLTextAreaElement>("[name=note], [name=score]")) {
    field.value = draft[field.name as "note" | "score"];
  }
  for (const box of form.querySelectorAll<HTMLInputElement>("[name=tag]")) {
    box.checked = draft.tags.includes(box.value);
  }
  for (const area of corrections(form)) {
    const text = draft[area.name as "edited" | "thoughts"];
    if (text !== undefined) {
      area.value = text;
      area.closest("details")?.setAttribute("open", "");
    }
  }
}
