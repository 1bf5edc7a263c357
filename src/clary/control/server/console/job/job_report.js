// The profiler's report: what each of its rules says, and the page with all charts, which opens in a tab of its own.

import { address, get, ofJob } from "../base/api.js";
import { element, Kept, refill } from "../base/element.js";
import { icon } from "../base/icons.js";
import { failure, panel, skeleton } from "../base/places.js";
import { repeat } from "../base/repeating.js";
import { badge } from "../base/statuses.js";
import { rules } from "./job_rules.js";

const EVERY_MS = 20_000;

/** Make the tab. */
export function reportTab({ name, facts, signal }) {
  const kept = new Kept();
  const place = element("div", {}, skeleton(120));
  const list = element("div", {});
  const open = element(
    "a",
    { class: "button button-main", href: address(ofJob(name, "profiler-report")), target: "_blank", rel: "noopener" },
    icon("open"),
    "Open the report",
  );
  let isShown = false;
  const load = async () => {
    const page = await get(ofJob(name, "profiler-report"), { format: "json" }, signal);
    kept.show(place, page.rules, () => verdicts(page.rules));
    isShown = true;
    return facts().is_over ? false : undefined;
  };
  const again = repeat(load, {
    everyMs: EVERY_MS,
    signal,
    failed: (error) =>
      error.status &&
      !isShown &&
      refill(
        place,
        failure(error, () => again()),
      ),
  });
  const intro = element(
    "p",
    { class: "soft" },
    "One page with charts of every host and rank. It can be saved and read offline.",
  );
  return {
    element: element(
      "div",
      { class: "stacked" },
      element(
        "div",
        { class: "charts-head" },
        element("div", { class: "report-intro" }, element("h2", {}, "Profiler report"), intro),
        open,
      ),
      place,
      list,
    ),
    update: (now) => kept.show(list, now.rules, () => rules(now)),
  };
}

function verdicts(found) {
  const order = (rule) => (rule.fires ? 0 : rule.was_judged ? 1 : 2);
  const rows = [...found]
    .sort((one, other) => order(one) - order(other))
    .map((rule) =>
      element(
        "li",
        {},
        element("div", { class: "rule-head" }, element("strong", {}, rule.rule), verdict(rule)),
        element("p", { class: "said soft" }, rule.detail || rule.earlier),
        rule.evidence.length > 1 &&
          element(
            "details",
            {},
            element("summary", { class: "small" }, "Evidence"),
            element(
              "ul",
              { class: "told-list" },
              rule.evidence.map((line) => element("li", { class: "said" }, line)),
            ),
          ),
        rule.advice && element("p", { class: "said" }, rule.advice),
      ),
    );
  return panel("What its rules say of the measurements so far", element("ul", { class: "rules" }, rows));
}

function verdict(rule) {
  if (rule.fires) return badge("IssuesFound");
  return rule.was_judged ? badge("NoIssuesFound") : element("span", { class: "badge" }, icon("clock"), "Not judged");
}
