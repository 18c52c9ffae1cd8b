// Questions that stand in front of the page: to be confirmed, filled in, or closed by Escape.

import { button, element, field } from "./dom.js";
import { keepToken, token } from "./api.js";

let titles = 0;

// A modal <dialog>, which keeps the focus inside and gives it back; gone when it is closed.
export function modal(title, content, { wide = false, closed = () => {} } = {}) {
  const heading = element("h2", { id: `dialog-${(titles += 1)}` }, title);
  const dialog = element("dialog", { class: wide ? "wide" : null, "aria-labelledby": heading.id }, heading, content);
  dialog.addEventListener("close", () => {
    dialog.remove();
    closed(dialog.returnValue);
  });
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}

// Resolves to what `read` makes of the form when it is confirmed, or to null.
export function ask({ title, text, action, danger = false, fields = [], read = () => true }) {
  return new Promise((resolve) => {
    const cancel = button("Keep it as it is", () => dialog.close(""), { autofocus: danger && !fields.length });
    const confirm = element("button", { type: "submit", class: danger ? "danger" : "primary" }, action);
    const form = element(
      "form", { method: "dialog" },
      element("p", { id: "dialog-text" }, text), ...fields, element("div", { class: "actions" }, cancel, confirm),
    );
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      dialog.close("confirmed");
    });
    const dialog = modal(title, form, { closed: (value) => resolve(value === "confirmed" ? read() : null) });
    dialog.setAttribute("aria-describedby", "dialog-text");
  });
}

// The token that the server asks for where it listens on TCP; kept until the tab is closed.
export async function askForToken(reason = "") {
  const input = element("input", { type: "password", autocomplete: "off", spellcheck: "false", value: token(), autofocus: true });
  const given = await ask({
    title: "Token",
    text: `${reason} A token is made with “afterlog tokens add”. It is kept until this tab is closed.`.trim(),
    action: "Use this token",
    fields: [field("Token", input, "Leave it empty to forget the one that was given.")],
    read: () => ({ token: input.value.trim() }),
  });
  if (given) keepToken(given.token);
  return given !== null;
}
