// All tuning jobs, the newest first.

import { get } from "../base/api.js";
import { element, Kept, refill } from "../base/element.js";
import { empty, failure, nameParts, skeleton } from "../base/places.js";
import { repeat } from "../base/repeating.js";
import { jobPath, link, tuningPath } from "../base/router.js";
import { badge } from "../base/statuses.js";
import { ago, duration, moment, number } from "../base/words.js";
import { counted, goal, numTrials, tookS } from "./tuning_facts.js";

const EVERY_MS = 3000;
const HEAD = ["Tuning job", "Status", "Strategy", "Trials", "Objective", "Best", "Created", "Took"];

/** Make the page. */
export function tuningPage({ signal }) {
  const kept = new Kept();
  const place = element("div", {}, skeleton(160));
  let isShown = false;
  const load = async () => {
    const { tuning_jobs: rows } = await get("tuning", {}, signal);
    kept.show(place, [rows, Math.floor(Date.now() / EVERY_MS)], () => (rows.length ? table(rows) : none()));
    isShown = true;
  };
  return {
    title: "Tuning",
    element: element("div", {}, element("div", { class: "page-head" }, element("h1", {}, "Tuning")), place),
    shown: () => {
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
    },
  };
}

function table(rows) {
  const head = HEAD.map((text) => element("th", { scope: "col" }, text));
  return element(
    "div",
    { class: "panel" },
    element(
      "div",
      { class: "body scroll", tabindex: "0" },
      element(
        "table",
        { class: "tunings", "aria-label": "Tuning jobs" },
        element("thead", {}, element("tr", {}, head)),
        element("tbody", {}, rows.map(rowOf)),
      ),
    ),
  );
}

function rowOf(row) {
  const cells = [
    link(tuningPath(row.name), { class: "name", title: row.name, "aria-label": row.name }, nameParts(row.name)),
    badge(row.status),
    row.strategy,
    [element("span", {}, numTrials(row)), element("span", { class: "small faint counted" }, counted(row.counters))],
    goal(row.objective),
    row.best
      ? [
          element("strong", {}, number(row.best.value)),
          " ",
          link(jobPath(row.best.job), { class: "small", title: row.best.job }, `trial ${row.best.number}`),
        ]
      : element("span", { class: "faint" }, "none yet"),
    element("span", { title: moment(row.created_at) }, ago(row.created_at)),
    duration(tookS(row)),
  ];
  return element(
    "tr",
    {},
    cells.map((cell, index) => element("td", { class: "number", data: { head: HEAD[index] } }, cell)),
  );
}

function none() {
  return empty(
    "chart",
    "No tuning jobs yet",
    "A HyperparameterTuner of the SageMaker SDK, or CreateHyperParameterTuningJob, starts one. It appears here at once.",
  );
}
