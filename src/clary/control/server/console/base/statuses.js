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
  Pending: ["wait", "clock"],
  Interrupted: ["warn", "refresh"],
  Restarting: ["warn", "refresh"],
  Queued: ["wait", "clock"],
  InProgress: ["live", "play"],
  IssuesFound: ["bad", "warning"],
  NoIssuesFound: ["good", "check"],
  Error: ["warn", "close"],
};
const WORDS = {
  Pending: "Queued",
  InProgress: "Running",
  MaxRuntimeExceeded: "Out of time",
  MaxWaitTimeExceeded: "Waited too long",
  IssuesFound: "Issues found",
  NoIssuesFound: "No issues",
};
const TERMINAL = ["Completed", "Failed", "Stopped"];

/** Whether nothing can change this status any more. */
export function isOver(status) {
  return TERMINAL.includes(status);
}

/** Return the word of a job that says most, and the finer one of AWS where that says more. */
function tellingWords(status, secondary, state) {
  if (status === "InProgress" && state) return [state, secondary === "Pending" || secondary === state ? "" : secondary];
  if (status === "InProgress" || status === "Stopping") return [secondary || status, ""];
  return [secondary?.startsWith("Max") ? secondary : status, ""];
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
    withPhase && phase && element("span", { class: "badge-phase" }, phase),
  );
}

/** Return the finer word of AWS for what a job does, where it says more than its state. */
export function phaseWord(status, secondary, state) {
  return tellingWords(status, secondary, state)[1];
}
