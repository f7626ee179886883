// `<form data-upload="API" data-then="PAGE">` sends a file of JSON lines, and goes to the version that was made of it.
import { token } from "../session.ts";
import { rowsOf, told } from "./rows.ts";

const MOST_BYTES = 60 * 2 ** 20;

export function startUpload(): void {
  const form = document.querySelector<HTMLFormElement>("form[data-upload]");
  const fault = form?.querySelector<HTMLElement>("[data-upload-fault]");
  const button = form?.querySelector<HTMLButtonElement>("button[type=submit]");
  if (!form || !fault || !button) {
    return;
  }
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    button.disabled = true;
    fault.textContent = "";
    try {
      location.assign(await send(form));
    } catch (error) {
      fault.textContent =
        error instanceof TypeError ? "The server does not answer. Nothing was made." : String((error as Error).message);
      button.disabled = false;
    }
  });
}

interface Made {
  dataset: string;
  version: number;
}

/** The address of what was made. Throws an Error that says why nothing was. */
async function send(form: HTMLFormElement): Promise<string> {
  const data = new FormData(form);
  const file = data.get("file");
  if (!(file instanceof File) || file.size === 0) {
    throw new Error("Choose a file that is not empty.");
  }
  if (file.size > MOST_BYTES) {
    throw new Error("The file is too large for a page: `rollyard datasets import` reads it.");
  }
  const { text, lines } = rowsOf(textOf(await file.arrayBuffer()));
  const said = { ...chosen(data), source: file.name };
  const response = await fetch(form.dataset.upload as string, {
    method: "POST",
    headers: {
      Accept: "application/json",
      "Content-Type": "application/json",
      "X-CSRFToken": token() ?? String(data.get("csrfmiddlewaretoken")),
    },
    body: `${JSON.stringify(said).slice(0, -1)},"rows":${text}}`,
  });
  const answer: unknown = await response.json().catch(() => ({}));
  if (!response.ok) {
    throw new Error(told((answer as { detail?: string }).detail ?? response.statusText, lines));
  }
  const { dataset, version } = answer as Made;
  return `${form.dataset.then}${encodeURIComponent(dataset)}/${version}/`;
}

/** Whatever is no UTF-8 is refused: replaced, it would be learned. */
function textOf(bytes: ArrayBuffer): string {
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(bytes);
  } catch {
    throw new Error("The file is no text in UTF-8. Nothing was made.");
  }
}

function chosen(data: FormData): Record<string, string | number> {
  const texts = ["name", "form", "project", "note", "licence"].map((name) => [name, String(data.get(name) ?? "")]);
  return { ...Object.fromEntries(texts), validation_share: Number(data.get("validation_share") || 0) };
}
