// Jobs beside each other: what differs between their requests, what came of each, their curves over one another.

import { get, ofJob } from "./base/api.js";
import { element, refill } from "./base/element.js";
import { icon } from "./base/icons.js";
import { useKeys } from "./base/keys.js";
import { callout, empty, failure, panel, skeleton } from "./base/places.js";
import { go, jobPath, link, listPath, query } from "./base/router.js";
import { badge } from "./base/statuses.js";
import { duration, lossFirst, number } from "./base/words.js";
import { LineChart } from "./charts/line_chart.js";
import { SharedTime } from "./charts/shared_time.js";

const POINTS = 400;

/** Make the page. */
export function comparePage({ signal }) {
  const names = (query().jobs ?? "").split(",").filter(Boolean);
  const place = element("div", { class: "stacked" }, skeleton(120, 220));
  const curves = element("div", { class: "charts" });
  const load = async () => {
    if (!names.length) return refill(place, none());
    try {
      const page = await get("compare", { jobs: names.join(",") }, signal);
      const missing =
        page.missing.length > 0 &&
        callout("warn", "warning", "Not all of them exist", `There is no job ${page.missing.join(", ")}.`);
      if (!page.jobs.length) return refill(place, missing, none());
      const [parameters, others] = split(page.differences ?? []);
      refill(
        place,
        missing,
        parameters.length > 0 && differences(page.jobs, "Hyperparameters", parameters),
        jobsTable(page),
        (others.length > 0 || !parameters.length) && differences(page.jobs, "Differences", others),
        curves,
      );
      drawCurves(curves, page.jobs, signal);
    } catch (error) {
      if (!signal.aborted) refill(place, failure(error, load));
    }
  };
  useKeys({ Escape: () => go(listPath()) });
  load();
  return {
    title: "Compare",
    element: element(
      "div",
      {},
      link(listPath(), { class: "back" }, icon("arrow"), "Jobs"),
      element("div", { class: "page-head" }, element("h1", {}, `Compare ${names.length || ""} jobs`)),
      place,
    ),
  };
}

function jobsTable(page) {
  const metrics = [...new Set(page.jobs.flatMap((job) => (job.metrics ?? []).map((metric) => metric.name)))];
  const line = (title, cell) =>
    element(
      "tr",
      {},
      element("th", { scope: "row" }, title),
      page.jobs.map((job) => element("td", { class: "number" }, cell(job))),
    );
  const value = (job, name) => number(job.metrics?.find((metric) => metric.name === name)?.value ?? null);
  return panel(
    "Results",
    element(
      "div",
      { class: "scroll", tabindex: "0" },
      element(
        "table",
        { class: "compare" },
        jobsHead(page.jobs),
        element(
          "tbody",
          {},
          line("Status", (job) => badge(job.status, job.secondary_status, { state: job.state })),
          line("Took", (job) => duration(job.duration_s)),
          metrics.map((name) => line(name, (job) => value(job, name))),
        ),
      ),
    ),
  );
}

/** Part what people have set from what else differs; what SDKs add for themselves is none of the first. */
function split(items) {
  const isSet = (item) => /^HyperParameters\.(?!sagemaker_)/.test(item.key);
  return [items.filter(isSet), items.filter((item) => !isSet(item))];
}

function differences(jobs, title, items) {
  if (!items.length)
    return panel(title, empty("check", "Their requests are the same", "Nothing but the names differs."));
  const cell = (text) =>
    text === null || text === undefined
      ? element("span", { class: "faint" }, "not set")
      : typeof text === "object"
        ? JSON.stringify(text)
        : String(text);
  const rows = items.map((item) =>
    element(
      "tr",
      {},
      element("th", { scope: "row" }, item.key.replace(/^HyperParameters\.(?!sagemaker_)/, "").replace(".", ": ")),
      item.values.map((text) => element("td", { class: "mono" }, cell(text))),
    ),
  );
  return panel(
    title,
    element(
      "div",
      { class: "scroll", tabindex: "0" },
      element("table", { class: "compare" }, jobsHead(jobs), element("tbody", {}, rows)),
    ),
  );
}

function jobsHead(jobs) {
  return element(
    "thead",
    {},
    element(
      "tr",
      {},
      element("td", {}),
      jobs.map((job, index) =>
        element(
          "th",
          { scope: "col" },
          element("span", { class: `swatch line-${index % 8}` }),
          " ",
          link(jobPath(job.name), {}, job.name),
        ),
      ),
    ),
  );
}

async function drawCurves(place, jobs, signal) {
  const zero = 1; // times count from each job's first value
  const found = await Promise.all(
    jobs.map((job) => get(ofJob(job.name, "metric-values"), { points: POINTS }, signal).catch(() => ({ metrics: {} }))),
  );
  const names = [...new Set(found.flatMap((one) => Object.keys(one.metrics)))].sort(lossFirst);
  const shared = new SharedTime({ zero });
  let longest = 0;
  const charts = names.map((name) => {
    const lines = jobs.map((job, index) => {
      const metrics = found[index].metrics; // a metric may have any name, `constructor` too
      const points = Object.hasOwn(metrics, name) ? metrics[name] : [];
      const begin = Math.min(
        ...Object.values(found[index].metrics)
          .filter((one) => one.length)
          .map((one) => one[0][0]),
      );
      const moved = points.map(([at, value]) => [at - begin + zero, value]);
      longest = Math.max(longest, moved.at(-1)?.[0] ?? 0);
      return { key: job.name, label: job.name, colour: index % 8, points: moved };
    });
    return [new LineChart({ title: name, unit: "", shared, signal }), lines.filter((line) => line.points.length)];
  });
  shared.setWhole(zero, longest);
  refill(
    place,
    charts.map(([chart]) => chart.element),
  );
  for (const [chart, lines] of charts) chart.setLines(lines);
}

function none() {
  return empty(
    "chart",
    "No jobs are chosen",
    "Select two or more in the list of jobs, then Compare.",
    link("/console/jobs", { class: "button" }, "See all jobs"),
  );
}
