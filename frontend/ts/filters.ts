// Lists that are filtered in the page as one types: `<input data-filters="#id">` hides rows whose text lacks the words.

export function startFilters(): void {
  for (const input of document.querySelectorAll<HTMLInputElement>("input[data-filters]")) {
    const target = document.querySelector(input.dataset.filters as string);
    if (!target) {
      continue;
    }
    const apply = (): void => {
      const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      let shown = 0;
      for (const row of target.querySelectorAll<HTMLElement>("[data-filter-row]")) {
        const text = (row.textContent ?? "").toLowerCase();
        row.hidden = !words.every((word) => text.includes(word));
        shown += row.hidden ? 0 : 1;
      }
      for (const section of target.querySelectorAll<HTMLElement>("[data-filter-section]")) {
        section.hidden = section.querySelector("[data-filter-row]:not([hidden])") === null;
      }
      const count = document.querySelector(`[data-filter-count="${input.dataset.filters}"]`);
      if (count) {
        count.textContent = words.length > 0 ? `${shown} shown` : "";
      }
    };
    input.addEventListener("input", apply);
    apply();
  }
}
