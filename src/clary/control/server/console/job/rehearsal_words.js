// How a rehearsal stands, as a badge and in words.

import { element } from "../base/element.js";
import { icon } from "../base/icons.js";

const STATES = {
  running: ["live", "play", "Under way"],
  failed: ["bad", "close", "Not carried out"],
  cancelled: ["quiet", "stop", "Cancelled"],
  interrupted: ["warn", "warning", "Interrupted"],
  PASS: ["good", "check", "PASS"],
  FAIL: ["bad", "close", "FAIL"],
  INCONCLUSIVE: ["warn", "warning", "INCONCLUSIVE"],
};

/** Return in a word or two how a rehearsal stands. */
export function rehearsalWord(rehearsal) {
  return stateOf(rehearsal)[2];
}

/** Make a badge of it. */
export function rehearsalBadge(rehearsal) {
  const [kind, drawing, word] = stateOf(rehearsal);
  return element(
    "span",
    { class: `badge badge-${kind}` },
    kind === "live" ? element("span", { class: "pulse", "aria-hidden": "true" }) : icon(drawing),
    word,
  );
}

function stateOf({ state, verdict }) {
  return STATES[state === "certified" ? verdict : state] ?? ["quiet", "clock", verdict || state];
}

/** Return what the service says as a sentence of its own. */
export function sentence(text) {
  return text ? `${text.charAt(0).toUpperCase()}${text.slice(1).replace(/\.$/, "")}.` : "";
}
