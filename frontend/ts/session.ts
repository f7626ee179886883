// A session that ended: what a page asks for is answered with the sign-in page, and no part of it is put into the page.

const TOKEN = "csrfmiddlewaretoken";

let notice: HTMLElement | undefined;

export function startSession(): void {
  document.body.addEventListener("htmx:beforeSwap", (event) => {
    const answer = (event as CustomEvent<{ xhr: XMLHttpRequest; shouldSwap: boolean }>).detail;
    if (isSignInPage(answer.xhr)) {
      answer.shouldSwap = false;
      // A live page goes to the sign-in page by itself.
      if (!document.body.dataset.runs) {
        tell();
      }
    } else if (answer.shouldSwap) {
      notice?.remove();
      notice = undefined;
    }
  });
  // Signing in, in another tab too, changes the token that forms are sent with: one that was filled in before goes on.
  document.body.addEventListener("htmx:configRequest", (event) => {
    const { parameters } = (event as CustomEvent<{ parameters: Record<string, string> }>).detail;
    if (parameters[TOKEN]) {
      parameters[TOKEN] = token() ?? parameters[TOKEN];
    }
  });
  document.addEventListener("submit", (event) => {
    const field = (event.target as HTMLFormElement).querySelector<HTMLInputElement>(`input[name=${TOKEN}]`);
    if (field) {
      field.value = token() ?? field.value;
    }
  });
}

export function isSignInPage(request: XMLHttpRequest): boolean {
  return request.responseURL !== "" && new URL(request.responseURL).pathname.startsWith("/login");
}

/** As the cookie has it now. */
export function token(): string | undefined {
  return /(?:^|; )rollyard_csrf=([^;]+)/.exec(document.cookie)?.[1];
}

function tell(): void {
  if (notice) {
    return;
  }
  const link = document.createElement("a");
  link.href = "/login/";
  link.target = "_blank";
  link.textContent = "sign in";
  const said = document.createElement("span");
  said.append("Your session has ended. What you typed stays: ", link, " in another tab, and go on here.");
  notice = document.createElement("p");
  notice.className = "notice error stays";
  notice.setAttribute("role", "alert");
  notice.append(said);
  document.getElementById("main")?.prepend(notice);
}
