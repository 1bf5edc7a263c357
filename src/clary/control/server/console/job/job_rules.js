// Rules beside a job: how each stands, and what it found.

import { element } from "../base/element.js";
import { panel } from "../base/places.js";
import { badge } from "../base/statuses.js";
import { moment } from "../base/words.js";

const ORDER = ["IssuesFound", "Error", "InProgress", "Stopping", "Stopped", "NoIssuesFound"];

/** Make the panel; null for a job without rules. */
export function rules(facts) {
  const rows = [...(facts.rules ?? [])];
  if (!rows.length) return null;
  rows.sort((one, other) => ORDER.indexOf(one.status) - ORDER.indexOf(other.status));
  const made = rows.map((rule) =>
    element(
      "li",
      {},
      element(
        "div",
        { class: "rule-head" },
        element("strong", {}, rule.name),
        rule.kind && element("span", { class: "faint small" }, rule.kind),
        badge(rule.status),
        rule.changed_at && element("span", { class: "faint small number" }, moment(rule.changed_at)),
      ),
      rule.details && element("p", { class: "said soft" }, rule.details),
    ),
  );
  const found = rows.filter((rule) => rule.status === "IssuesFound").length;
  return panel("Rules", element("ul", { class: "rules" }, made), { extra: found > 0 && badge("IssuesFound") });
}
