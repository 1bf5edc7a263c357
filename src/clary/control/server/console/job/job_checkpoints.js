// How far each host's checkpoints are mirrored.

import { element } from "../base/element.js";
import { icon } from "../base/icons.js";
import { panel } from "../base/places.js";
import { ago, count, duration, quantity } from "../base/words.js";

const MOST_NAMES = 5;

/** Make the panel; null for a job of which no host has said anything. */
export function checkpoints(hosts) {
  const rows = Object.entries(hosts ?? {});
  if (!rows.length) return null;
  return panel(
    "Checkpoints",
    element(
      "ul",
      { class: "pairs" },
      rows.map(([host, facts]) =>
        element(
          "li",
          {},
          element("span", { class: "soft" }, host),
          element("span", {}, progressOf(facts)),
          troubles(facts).map(trouble),
        ),
      ),
    ),
  );
}

function progressOf(facts) {
  const stored = facts.set_number
    ? `Set ${facts.set_number}${facts.committed_at ? `, committed ${ago(facts.committed_at)}` : ""}`
    : "No set yet";
  if (!facts.dirty_files) return `${stored}; ${facts.set_number ? "nothing changed since" : "nothing to store"}`;
  const waits = facts.lag_s ? `, for ${duration(facts.lag_s)}` : "";
  return `${stored}; ${count(facts.dirty_files, "file")} (${quantity(facts.dirty_bytes ?? 0, "B")}) changed since${waits}`;
}

function troubles(facts) {
  const missed = facts.missed ?? [];
  const torn = facts.torn ?? [];
  return [
    facts.stalled_since && `Stalled, began ${ago(facts.stalled_since)}`,
    facts.error && `Last error: ${facts.error}`,
    missed.length > 0 && `Not stored at the end: ${first(missed)}`,
    torn.length > 0 && `Left out at the end, which has cut them short: ${first(torn)}`,
  ].filter(Boolean);
}

function first(names) {
  const more = names.length > MOST_NAMES ? ` and ${names.length - MOST_NAMES} more` : "";
  return `${names.slice(0, MOST_NAMES).join(", ")}${more}`;
}

function trouble(text) {
  return element("span", { class: "reason-bad said" }, icon("warning"), ` ${text}`);
}
