// Buttons that copy the text of the element they name: <button data-copies="#id">.
const SAID_MS = 1500;

export function startCopy(): void {
  document.addEventListener("click", (event) => {
    const button = (event.target as Element).closest<HTMLButtonElement>("button[data-copies]");
    const source = button && document.querySelector(button.dataset.copies ?? "");
    if (!button || !source) return;
    void copy(source.textContent ?? "", source).then((said) => {
      const label = button.textContent;
      button.textContent = said;
      setTimeout(() => {
        button.textContent = label;
      }, SAID_MS);
    });
  });
}

// Browsers give the clipboard only to HTTPS and localhost; elsewhere the text is selected for Ctrl-C.
async function copy(text: string, source: Element): Promise<string> {
  try {
    await navigator.clipboard.writeText(text);
    return "Copied";
  } catch {
    getSelection()?.selectAllChildren(source);
    return "Press Ctrl-C";
  }
}
