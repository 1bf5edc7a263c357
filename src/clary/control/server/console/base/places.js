// What stands where there is nothing yet, nothing at all, or an error; dialogs, toasts, the hint beside the pointer.

import { element, refill } from "./element.js";
import { icon } from "./icons.js";

const TOAST_MS = 6000;

/** Make a panel with a heading; `extra` stands at the right of it. */
export function panel(title, body, { extra = null, label = title } = {}) {
  return element(
    "section",
    { class: "panel", "aria-label": label },
    element("header", {}, element("h2", {}, title), extra),
    element("div", { class: "body" }, body),
  );
}

/** Make a box that stands out. */
export function callout(kind, drawing, title, text, advice = "") {
  return element(
    "section",
    { class: `callout callout-${kind}`, "aria-label": title },
    icon(drawing),
    element(
      "div",
      {},
      element("h2", {}, title),
      element("p", { class: "said" }, text),
      advice && element("p", { class: "soft" }, advice),
    ),
  );
}

/** Say that there is nothing, and what to do about it. */
export function empty(drawing, title, text, action = null) {
  return element("div", { class: "empty" }, icon(drawing), element("h2", {}, title), element("p", {}, text), action);
}

/** Say what went wrong and offer to try again. */
export function failure(error, again) {
  const action =
    again && element("button", { class: "button", type: "button", on: { click: again } }, icon("refresh"), "Try again");
  const box = empty("warning", "This could not be shown", error.message, action);
  box.setAttribute("role", "alert");
  return box;
}

/** Make grey bars of the given heights where text will come. */
export function skeleton(...heights) {
  const bars = heights.map((height) =>
    element("div", { class: "skeleton", style: { height: `${height}px`, "margin-bottom": "12px" } }),
  );
  return element("div", { "aria-busy": "true", "aria-label": "Loading" }, bars);
}

/** Say something for a moment, to eyes and to screen readers. */
export function toast(text, drawing = "check") {
  let place = document.querySelector(".toasts");
  if (!place) document.body.append((place = element("div", { class: "toasts", role: "status" })));
  const shown = element("div", { class: "toast" }, icon(drawing), element("span", {}, text));
  place.append(shown);
  setTimeout(() => shown.remove(), TOAST_MS);
}

/** Open a dialog with these parts in a form; `submit` runs on its main button. Returns the dialog. */
export function openDialog(title, parts, { submit = null, buttons }) {
  const heading = element("h2", { id: "dialog-title" }, title);
  const form = element("form", { method: "dialog" }, heading, parts, element("footer", {}, buttons));
  const dialog = element("dialog", { "aria-labelledby": "dialog-title" }, form);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    submit ? submit(dialog) : dialog.close();
  });
  dialog.addEventListener("close", () => dialog.remove());
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}

/**
 * Ask whether to stop something; `told` says what will happen, `act` stops it, `done` runs behind that. A refusal is
 * shown in the dialog, which stays.
 */
export function askStopping({ name, told, words, act, done }) {
  const wrong = element("p", { class: "reason-bad", role: "alert" });
  const stop = element("button", { class: "button button-stop", type: "submit" }, words);
  const submit = async (dialog) => {
    stop.disabled = true;
    wrong.textContent = "";
    try {
      await act();
      dialog.close();
      toast(`${name} is stopping`, "stop");
      done();
    } catch (error) {
      wrong.textContent = error.message;
      stop.disabled = false;
    }
  };
  const list = element(
    "ul",
    { class: "told" },
    told.map((text) => element("li", {}, text)),
  );
  openDialog(`Stop ${name}?`, [list, wrong], { submit, buttons: [closeButton("Keep it running"), stop] });
}

/** Make a button that closes its dialog. */
export function closeButton(text) {
  return element(
    "button",
    { class: "button", type: "button", on: { click: (event) => event.target.closest("dialog").close() } },
    text,
  );
}

/** Make a button that copies what `text` returns. */
export function copyButton(text, label = "Copy", { small = true } = {}) {
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text());
      toast("Copied");
    } catch {
      toast("The browser does not allow copying here; select the text instead", "warning");
    }
  };
  return element(
    "button",
    { class: `button${small ? " button-small" : ""}`, type: "button", on: { click: copy } },
    icon("copy"),
    label,
  );
}

const TAIL = 12; // letters at the end of a name that are never cut: they tell the jobs of a sweep apart

/** Return the parts of a name that is cut in its middle where it has no room; they go into an element of class `name`. */
export function nameParts(name) {
  const at = Math.max(0, name.length - TAIL);
  return [element("span", { class: "cut" }, name.slice(0, at)), element("span", {}, name.slice(at))];
}

let hint = null;

/** Show lines beside the pointer; null hides them. */
export function tip(event, lines) {
  if (!hint) document.body.append((hint = element("div", { class: "tip", role: "tooltip" })));
  hint.hidden = lines === null;
  if (lines === null) return;
  refill(
    hint,
    lines.map((line) => element("div", {}, line)),
  );
  const left = Math.min(event.clientX + 14, innerWidth - hint.offsetWidth - 8);
  const top =
    event.clientY + 18 + hint.offsetHeight > innerHeight ? event.clientY - hint.offsetHeight - 12 : event.clientY + 18;
  hint.style.left = `${Math.max(8, left)}px`;
  hint.style.top = `${Math.max(8, top)}px`;
}

/** Show lines beside the pointer while it is over an element. */
export function tipped(target, lines) {
  target.addEventListener("pointermove", (event) => tip(event, lines));
  target.addEventListener("pointerleave", (event) => tip(event, null));
  return target;
}
