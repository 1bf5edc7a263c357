// Where a job's time went, as one bar with its parts by name, and what would have been paid for it.

import { element } from "../base/element.js";
import { tipped } from "../base/places.js";
import { count, dollars, duration } from "../base/words.js";
import { partColour, partWord } from "./time_parts.js";

const SOON = 0.3; // s; shorter parts are in the list alone

/** Make the ledger. */
export function ledger(facts) {
  const parts = Object.entries(facts.seconds).filter(([, seconds]) => seconds > 0);
  const all = parts.reduce((sum, [, seconds]) => sum + seconds, 0) || 1;
  const percent = (seconds) => `${((100 * seconds) / all).toFixed(1)} %`;
  const bars = parts
    .filter(([, seconds]) => seconds > SOON || parts.length < 4)
    .map(([part, seconds]) =>
      tipped(element("div", { style: { flex: `${seconds} 0 0`, background: partColour(part) } }), [
        partWord(part),
        `${duration(seconds)}, ${percent(seconds)}`,
      ]),
    );
  const rows = [...parts]
    .sort((one, other) => other[1] - one[1])
    .map(([part, seconds]) =>
      element(
        "li",
        {},
        element("span", { class: "swatch", style: { background: partColour(part) } }),
        element("span", {}, partWord(part)),
        element("span", { class: "number" }, duration(seconds)),
        element("span", { class: "number faint" }, percent(seconds)),
      ),
    );
  return [
    element(
      "div",
      { class: "goodput" },
      element("strong", { class: "number" }, `${(100 * facts.goodput).toFixed(1)} %`),
      element(
        "span",
        { class: "soft" },
        ` goodput of ${count(facts.hosts.length, "host")} × ${duration(facts.wall_s)}${attempts(facts)}`,
      ),
    ),
    element(
      "div",
      {
        class: "stack-bar",
        role: "img",
        "aria-label": parts.map(([part, seconds]) => `${partWord(part)} ${percent(seconds)}`).join(", "),
      },
      bars,
    ),
    element("ul", { class: "parts" }, rows),
    facts.hosts.length > 1 && element("p", { class: "small faint" }, "Times are those of all hosts together."),
    money(facts.bill, facts.hosts.length),
  ];
}

function attempts(facts) {
  if (facts.num_attempts < 2) return "";
  const ended = [
    facts.num_reclaimed && `${facts.num_reclaimed} reclaimed`,
    facts.num_restarted && `${facts.num_restarted} restarted`,
  ].filter(Boolean);
  return `, ${facts.num_attempts} attempts${ended.length ? ` (${ended.join(", ")})` : ""}`;
}

function money(bill, num_hosts) {
  if (!bill) return null;
  const billed = `${duration(bill.billable_s)} billable of ${duration(bill.training_s)} training a host`;
  const saved = bill.is_spot ? `, ${bill.savings_percent.toFixed(1)} % saved on spot capacity` : "";
  const cost =
    bill.on_demand_usd === null || bill.on_demand_usd === undefined
      ? ""
      : `${count(num_hosts, "host")} would have cost ${dollars(bill.on_demand_usd)} on demand, ${dollars(bill.spot_usd)} on spot capacity`;
  return element(
    "div",
    { class: "money soft" },
    element("p", {}, billed + saved),
    cost && element("p", {}, cost, element("span", { class: "faint" }, ` (approximate: ${bill.source})`)),
    bill.notes.map((note) => element("p", { class: "faint" }, note)),
  );
}
