// The faults that a rehearsal can have, as rows to choose from, each with where and when it strikes.

import { element } from "../base/element.js";

const KINDS = {
  reclaim: { title: "Take spot capacity back", told: "SIGTERM, the grace period, a last flush, the next attempt.", any: true },
  kill: { title: "Kill a host", told: "Everything on it ends at once; nothing is flushed.", host: true },
  "kill-rank": { title: "Kill a rank", told: "One rank's process, and what it has started.", rank: true },
  partition: { title: "Cut a host off", told: "Its job's network carries nothing to it or from it.", host: true, lengthS: 10 },
  slow: { title: "Slow a host's link", told: "No more passes it, both ways.", host: true, lengthS: 30, rate: 5 },
  "disk-full": { title: "Fill a host's disk", told: "Writes below /opt/ml get ENOSPC.", host: true, lengthS: 30, size: "2GiB" },
};
const OF_NETWORKS = ["partition", "slow"];
const ONE_HOST = "a job of one host has no network between hosts";
const MOST_S = 86_400;

/**
 * Make the rows.
 * Args: options: what the service says can be had; at: {unit: "step" or "s", value}: when faults strike unless chosen.
 * Returns the element, and `chosen()`: [{kind, text}] as on the command line, with the size of disks.
 */
export function faultChoices(options, at) {
  const rows = Object.entries(KINDS).map(([kind, facts]) => faultRow(kind, facts, options, at));
  return {
    element: element(
      "fieldset",
      { class: "faults" },
      element("legend", {}, "What strikes"),
      rows.map((row) => row.element),
    ),
    chosen: () => {
      const wanted = rows.filter((row) => row.box.checked);
      return {
        faults: wanted.map((row) => ({ kind: row.kind, text: row.text() })),
        diskSize: wanted.map((row) => row.size()).find(Boolean) ?? "",
      };
    },
  };
}

function faultRow(kind, facts, options, at) {
  const refusal = options.refusals[kind] ?? (OF_NETWORKS.includes(kind) && options.hosts.length < 2 ? ONE_HOST : "");
  const id = `fault-${kind}`;
  const box = element("input", { type: "checkbox", id, disabled: Boolean(refusal), "aria-describedby": `${id}-told` });
  const host = select([...(facts.any ? [["", "any"]] : []), ...options.hosts.map((name) => [name, name])]);
  if (facts.host) host.value = options.hosts.at(-1);
  const rank = number(0, { min: 0, max: 999_999 });
  const unit = select([
    ["step", "at step"],
    ["s", "after seconds"],
  ]);
  unit.value = at.unit;
  const when = number(at.value, { min: 1, max: 999_999_999 });
  const length = number(facts.lengthS, { min: 1, max: MOST_S });
  const rate = number(facts.rate, { min: 0.1, max: 100_000, step: "any" });
  const size = element("input", { type: "text", value: facts.size, size: 7, autocomplete: "off" });
  const fields = element(
    "div",
    { class: "fault-fields", hidden: true },
    (facts.host || facts.any) && field("Host", host),
    facts.rank && field("Rank", rank),
    field("When", unit),
    field("Number", when),
    facts.lengthS && field("For seconds", length),
    facts.rate && field("Mbit/s", rate),
    facts.size && field("Disk size", size),
  );
  box.addEventListener("change", () => (fields.hidden = !box.checked));
  const text = () => {
    const amount = Number(when.value || at.value);
    const moment = unit.value === "step" ? `step:${Math.round(amount)}` : `${amount}s`;
    const over = facts.lengthS && length.value ? `+${Number(length.value)}s` : "";
    const speed = facts.rate ? `:${Number(rate.value || facts.rate)}mbit` : "";
    const where = facts.rank ? rank.value || "0" : host.value;
    return where ? `${where}@${moment}${over}${speed}` : unit.value === "step" ? moment : `@${moment}`;
  };
  return {
    kind,
    box,
    text,
    size: () => (facts.size ? size.value.trim() : ""),
    element: element(
      "div",
      { class: "fault", role: "group", "aria-label": facts.title },
      element("label", { class: "choice" }, box, facts.title),
      element("p", { class: "small soft", id: `${id}-told` }, refusal ? `Not here: ${refusal}` : facts.told),
      fields,
    ),
  };
}

/** Make a field with its label above. */
export function field(text, control) {
  return element("label", { class: "field" }, element("span", {}, text), control);
}

/** Make a field for a number. */
export function number(value, limits) {
  return element("input", { type: "number", inputmode: "decimal", value, ...limits });
}

function select(choices) {
  return element(
    "select",
    {},
    choices.map(([value, text]) => element("option", { value }, text)),
  );
}
