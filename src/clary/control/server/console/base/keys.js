// Keys that pages listen to, and the dialog that lists them.

import { element } from "./element.js";
import { closeButton, openDialog } from "./places.js";

const EVERYWHERE = [
  ["/", "Search"],
  ["j  k", "Next and previous job"],
  ["Enter", "Open what is marked"],
  ["x", "Select the marked job, to compare it"],
  ["1 … 8", "Tabs of a job"],
  ["f  w", "Follow the log, wrap its lines"],
  ["Esc", "Back; closes what is open"],
  ["g j", "All jobs"],
  ["g t", "Tuning jobs"],
  ["g h", "Hosts and warm pools"],
  ["?", "These keys"],
];
const SEQUENCE_MS = 1200;

let handlers = {};
let pendingSince = -Infinity; // when g was pressed
let isListening = false;

/** Have keys do something while a page is open: `{"j": handler}`; a handler that returns false leaves the key alone. */
export function useKeys(keys) {
  handlers = { ...handlers, ...keys };
}

/** Forget what the last page wanted. */
export function clearKeys() {
  handlers = {};
}

/** Begin to listen; once. */
export function listen() {
  if (isListening) return;
  isListening = true;
  document.addEventListener("keydown", pressed);
}

/** Show what the keys do. */
export function showKeys() {
  if (document.querySelector("dialog[open]")) return;
  const rows = EVERYWHERE.map(([keys, text]) => [
    element(
      "div",
      {},
      keys
        .split(" ")
        .filter(Boolean)
        .map((key) => [element("kbd", {}, key), " "]),
    ),
    element("div", { class: "soft" }, text),
  ]);
  openDialog("Keys", element("div", { class: "keys" }, rows), { buttons: closeButton("Close") });
}

function pressed(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  const isTyping = event.target.matches?.("input:not([type=checkbox]), textarea, select");
  if (isTyping) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  const wasPending = performance.now() - pendingSince < SEQUENCE_MS;
  pendingSince = -Infinity;
  if (event.key === "g" && !wasPending) {
    pendingSince = performance.now();
    return;
  }
  const paths = { j: "/console/jobs", t: "/console/tuning", h: "/console/hosts" };
  if (wasPending && paths[event.key]) {
    window.dispatchEvent(new CustomEvent("clary-go", { detail: paths[event.key] }));
  } else if (event.key === "?") {
    showKeys();
  } else if (!handlers[event.key] || handlers[event.key](event) === false) {
    return;
  }
  event.preventDefault();
}
