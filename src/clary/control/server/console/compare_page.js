// Jobs beside each other: what differs between their requests, what came of each, their curves over one another.

import { get, ofJob } from "./base/api.js";
import { element, refill } from "./base/element.js";
import { icon } from "./base/icons.js";
import { useKeys } from "./base/keys.js";
import { callout, empty, failure, panel, skeleton } from "./base/places.js";
import { go, jobPath, link, listPath, query, setQuery } from "./base/router.js";
import { badge } from "./base/statuses.js";
import { count, duration, endings, lossFirst, number } from "./base/words.js";
import { bySteps, hasSteps, queryOf, STEPS, viewControls, viewed, viewOf } from "./charts/curve_view.js";
import { LineChart } from "./charts/line_chart.js";
import { SharedSteps } from "./charts/shared_steps.js";
import { SharedTime } from "./charts/shared_time.js";

const POINTS = 400;
const ZERO = 1; // times count from each job's first value

/** Make the page. */
export function comparePage({ signal }) {
  const names = (query().jobs ?? "").split(",").filter(Boolean);
  const place = element("div", { class: "stacked" }, skeleton(120, 220));
  const curves = element("div", {});
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
        page.jobs.length > 1 && (others.length > 0 || !parameters.length) && differences(page.jobs, "Differences", others),
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
      element("div", { class: "page-head" }, element("h1", {}, names.length ? `Compare ${count(names.length, "job")}` : "Compare jobs")),
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
  const short = endings(jobs.map((job) => job.name));
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
          link(jobPath(job.name), { title: job.name, "aria-label": job.name }, short[index]),
        ),
      ),
    ),
  );
}

async function drawCurves(place, jobs, signal) {
  const found = await Promise.all(
    jobs.map((job) => get(ofJob(job.name, "metric-values"), { points: POINTS }, signal).catch(() => ({ metrics: {} }))),
  );
  const names = [...new Set(found.flatMap((one) => Object.keys(one.metrics)))].sort(lossFirst);
  if (!names.length) return;
  const view = viewOf(query());
  const curves = new Curves(names, jobs, found, signal);
  const changed = () => {
    setQuery(queryOf(view));
    curves.show(view);
  };
  refill(
    place,
    element("div", { class: "charts-head" }, element("h2", {}, "Curves"), viewControls(view, changed)),
    curves.element,
  );
  curves.show(view);
}

/** A chart of each metric: over steps, if any job said them, else over the time since each job's first value. */
class Curves {
  #time = new SharedTime({ zero: ZERO });
  #steps = new SharedSteps();
  #charts = new Map();
  element = element("div", { class: "charts" });

  constructor(names, jobs, found, signal) {
    Object.assign(this, { names, jobs, signal, labels: endings(jobs.map((job) => job.name)) });
    // A metric may have any name, `constructor` too.
    this.curves = names.map((name) => found.map((one) => (Object.hasOwn(one.metrics, name) ? one.metrics[name] : [])));
    this.begins = found.map((one) =>
      Math.min(...Object.values(one.metrics).flatMap((points) => points.slice(0, 1).map(([at]) => at))),
    );
    const all = this.curves.flatMap((curves) => curves.map((curve, index) => this.#overTime(curve, index).at(-1)?.[0]));
    this.#time.setWhole(ZERO, Math.max(ZERO, ...all.filter((at) => at !== undefined)));
    this.#steps.setWhole(0, Math.max(0, ...this.curves.flat().map((curve) => bySteps(curve).at(-1)?.[0] ?? 0)));
  }

  show(view) {
    const shown = this.names.map((name, place) => {
      const isBySteps = view.axis === STEPS && hasSteps(this.curves[place]);
      const lines = this.curves[place].map((curve, index) => {
        const points = isBySteps ? bySteps(curve) : this.#overTime(curve, index);
        const line = { key: this.jobs[index].name, label: this.labels[index], colour: index % 8, points };
        return viewed(line, view.smoothing);
      });
      return [this.#chart(name, isBySteps), lines.filter((line) => line.points.length)];
    });
    refill(
      this.element,
      shown.map(([chart]) => chart.element),
    );
    for (const [chart, lines] of shown) chart.setLines(lines);
  }

  #overTime(curve, index) {
    return curve.map(([at, value]) => [at - this.begins[index] + ZERO, value]);
  }

  #chart(name, isBySteps) {
    const key = JSON.stringify([name, isBySteps]);
    const shared = isBySteps ? this.#steps : this.#time;
    if (!this.#charts.has(key))
      this.#charts.set(key, new LineChart({ title: name, unit: "", shared, signal: this.signal }));
    return this.#charts.get(key);
  }
}

function none() {
  return empty(
    "chart",
    "No jobs are chosen",
    "Select two or more in the list of jobs, then Compare.",
    link("/console/jobs", { class: "button" }, "See all jobs"),
  );
}
