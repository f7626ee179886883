// Buttons that open a <dialog>: `data-opens="<id>"`. Closing is the platform's: Escape, or <form method="dialog">.

export function startDialogs(): void {
  document.addEventListener("click", (event) => {
    const target = event.target as Element;
    const opener = target.closest<HTMLElement>("[data-opens]");
    if (opener) {
      openDialog(opener.dataset.opens as string);
    } else if (target.closest("[data-closes]")) {
      target.closest("dialog")?.close();
    } else if (target instanceof HTMLDialogElement) {
      // The dialog element itself is hit only on its backdrop: its content covers the rest.
      target.close();
    } else {
      closeMenus(target);
    }
  });
  document.addEventListener("submit", (event) => {
    // A second click must not send a form twice.
    const form = event.target as HTMLFormElement;
    if (form.method === "post") {
      const button = (event as SubmitEvent).submitter as HTMLButtonElement | null;
      if (button) {
        // Later: a button that is disabled already is not sent.
        setTimeout(() => button.setAttribute("disabled", ""));
      }
    }
  });
  window.addEventListener("pageshow", () => {
    const sent = "form[method=post] button:disabled:not([hidden])"; // what is hidden keeps Enter from sending
    for (const button of document.querySelectorAll<HTMLButtonElement>(sent)) {
      button.disabled = false;
    }
  });
}

export function openDialog(id: string): void {
  const dialog = document.getElementById(id);
  if (dialog instanceof HTMLDialogElement && !dialog.open) {
    dialog.showModal();
  }
}

function closeMenus(target: Element): void {
  for (const menu of document.querySelectorAll<HTMLDetailsElement>("details.menu[open]")) {
    if (!menu.contains(target)) {
      menu.open = false;
    }
  }
}
