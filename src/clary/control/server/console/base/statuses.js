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

/** Return the one status that says most: `Pending` of a job that is in progress and waits for hosts. */
export function tellingStatus(status, secondary, pendingReason = "") {
  if (status === "InProgress" && pendingReason)
    return secondary === "Interrupted" || secondary === "Restarting" ? secondary : "Pending";
  if (status === "InProgress" || status === "Stopping") return secondary || status;
  return secondary?.startsWith("Max") ? secondary : status;
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
export function badge(status, secondary = "", { large = false, waits = "" } = {}) {
  const telling = tellingStatus(status, secondary, waits);
  const [kind, drawing] = KINDS[telling] ?? KINDS.InProgress;
  return element(
    "span",
    { class: `badge badge-${kind}${large ? " badge-large" : ""}` },
    kind === "live" ? element("span", { class: "pulse", "aria-hidden": "true" }) : icon(drawing),
    statusWord(telling),
  );
}
