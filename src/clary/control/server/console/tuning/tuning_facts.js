// A tuning job in words: its head, its trials counted, its ranges and fixed hyperparameters.

import { element } from "../base/element.js";
import { icon } from "../base/icons.js";
import { panel } from "../base/places.js";
import { jobPath, link } from "../base/router.js";
import { serviceNow } from "../base/service_time.js";
import { badge, isOver } from "../base/statuses.js";
import { duration, moment, number } from "../base/words.js";
import { valueWords } from "./range_scales.js";
import { askStopTuning } from "./stop_tuning_dialog.js";

const COUNTED = {
  Completed: "completed",
  InProgress: "in progress",
  Stopped: "stopped",
  NonRetryableError: "failed",
  RetryableError: "failed by the service",
};

const SCALINGS = { Linear: "linear", Logarithmic: "logarithmic", ReverseLogarithmic: "reverse logarithmic" };

/** Return `12 of 40`, or `12` where only other limits end it. */
export function numTrials(row) {
  return row.max_trials === null ? `${row.num_trials}` : `${row.num_trials} of ${row.max_trials}`;
}

/** Return `3 in progress, 9 completed`. */
export function counted(counters) {
  return Object.entries(COUNTED)
    .filter(([key]) => counters[key])
    .map(([key, word]) => `${counters[key]} ${word}`)
    .join(", ");
}

/** Return `maximize accuracy`. */
export function goal({ metric, is_maximized }) {
  return `${is_maximized ? "maximize" : "minimize"} ${metric}`;
}

/** Return how many seconds a tuning job has lasted. */
export function tookS(row) {
  const end = row.ended_at ? Date.parse(row.ended_at) : serviceNow();
  return Math.max(0, end - Date.parse(row.created_at)) / 1000;
}

/** Make the head of a page: name, status, what can be done, facts in short; `again` runs when something was done. */
export function tuningHead(page, again) {
  const isOverNow = isOver(page.status);
  const parts = [
    ["Best", best(page)],
    ["Objective", goal(page.objective)],
    ["Strategy", page.strategy],
    ["Trials", [numTrials(page), element("span", { class: "soft" }, ` ${counted(page.counters)}`)]],
    ["Created", moment(page.created_at)],
    [isOverNow ? "Took" : "At work for", duration(tookS(page))],
    page.stops_early && ["Early stopping", "median rule"],
    page.parents.length > 0 && ["Begins with trials of", page.parents.join(", ")],
    page.status === "InProgress" ? ["Ends", page.ends.join("; ")] : page.status !== "Failed" && ["Ended", page.end_reason],
  ].filter(Boolean);
  const stop = element(
    "button",
    { class: "button", type: "button", on: { click: () => askStopTuning(page, again) } },
    icon("stop"),
    "Stop",
  );
  return [
    element(
      "div",
      { class: "page-head" },
      element("h1", {}, page.name),
      badge(page.status, "", { large: true }),
      element("div", { class: "acts" }, page.status === "InProgress" && stop),
    ),
    element(
      "dl",
      { class: "head-facts tuning-facts", "aria-label": "In short" },
      parts.map(([term, text]) => element("div", {}, element("dt", {}, term), element("dd", { class: "number" }, text))),
    ),
  ];
}

/** Make the panels of ranges and fixed hyperparameters, of each definition. */
export function rangePanels(page) {
  return page.definitions.map((definition) => {
    const of = definition.name ? ` of ${definition.name}` : "";
    const fixed = Object.entries(definition.hyperparameters);
    return [
      panel(`Ranges${of}`, rangeTable(definition.ranges)),
      fixed.length > 0 && panel(`Fixed hyperparameters${of}`, fixedList(fixed)),
    ];
  });
}

function best(page) {
  if (!page.best) return element("span", { class: "soft" }, "none yet");
  return [
    element("strong", { class: "best-value" }, number(page.best.value)),
    " ",
    link(jobPath(page.best.job), { title: page.best.job }, `trial ${page.best.number}`),
  ];
}

function rangeTable(ranges) {
  const row = (one) => {
    const values = one.kind === "categorical" ? one.values.join(", ") : `${valueWords(one.least)} to ${valueWords(one.greatest)}`;
    const kind = one.scaling ? `${one.kind}, ${SCALINGS[one.scaling]}` : one.kind;
    return element(
      "tr",
      {},
      element("th", { scope: "row" }, one.name),
      element("td", { class: "number" }, values),
      element("td", { class: "soft" }, kind),
    );
  };
  const head = ["Hyperparameter", "Values", "Kind"].map((text) => element("th", { scope: "col" }, text));
  return element(
    "div",
    { class: "scroll", tabindex: "0" },
    element("table", { class: "ranges" }, element("thead", {}, element("tr", {}, head)), element("tbody", {}, ranges.map(row))),
  );
}

function fixedList(entries) {
  return element(
    "dl",
    { class: "about" },
    entries.map(([name, value]) => [element("dt", {}, name), element("dd", { class: "mono" }, value)]),
  );
}
