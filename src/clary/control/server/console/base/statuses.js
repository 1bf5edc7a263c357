// Statuses as an icon and a word; colour only repeats what both say.

import { element } from "./element.js";
import { icon } from "./icons.js";

const KINDS = {
  Completed: ["good", "check"],
  Failed: ["bad", "close"],
  Stopped: ["quiet", "stop"],
  Stopping: ["warn", "stop"],
  MaxRuntimeExceeded: ["warn", "clock"],
  MaxWaitTimeExceeded: ["warn", "clock"],
  Interrupted: ["warn", "refresh"],
  Restarting: ["warn", "refresh"],
  Queued: ["wait", "clock"],
  InProgress: ["live", "play"],
  IssuesFound: ["bad", "warning"],
  NoIssuesFound: ["good", "check"],
  Error: ["warn", "close"],
};
const WORDS = {
  InProgress: "Running",
  MaxRuntimeExceeded: "Out of time",
  MaxWaitTimeExceeded: "Waited too long",
  IssuesFound: "Issues found",
  NoIssuesFound: "No issues",
};
// Of a job that waits AWS says Starting before it was looked at, and Pending from then on.
const SAME = { Queued: ["Pending", "Starting"] };
const TERMINAL = ["Completed", "Failed", "Stopped"];

/** Whether nothing can change this status any more. */
export function isOver(status) {
  return TERMINAL.includes(status);
}

/** Return a job's state, by which lists filter and count, and the finer word of AWS where that says more. */
function tellingWords(status, secondary, state) {
  const telling = state || status;
  return [telling, secondary === telling || SAME[telling]?.includes(secondary) ? "" : (secondary ?? "")];
}

/** Return how a status is called here. */
export function statusWord(status) {
  return WORDS[status] ?? status;
}

/** Return a status' kind: good, bad, warn, live, wait or quiet. */
export function statusKind(status) {
  return (KINDS[status] ?? KINDS.InProgress)[0];
}

/** Make a badge of a status. */
export function badge(status, secondary = "", { large = false, state = "", withPhase = true } = {}) {
  const [telling, phase] = tellingWords(status, secondary, state);
  const [kind, drawing] = KINDS[phase] ?? KINDS[telling] ?? KINDS.InProgress;
  return element(
    "span",
    { class: `badge badge-${kind}${large ? " badge-large" : ""}` },
    kind === "live" ? element("span", { class: "pulse", "aria-hidden": "true" }) : icon(drawing),
    statusWord(telling),
    withPhase && phase && element("span", { class: "badge-phase" }, statusWord(phase)),
  );
}

/** Return the finer word of AWS for what a job does, where it says more than its state. */
export function phaseWord(status, secondary, state) {
  return statusWord(tellingWords(status, secondary, state)[1]);
}
