// One job in the list.

import { element } from "./base/element.js";
import { nameParts } from "./base/places.js";
import { jobPath, link } from "./base/router.js";
import { badge, isOver, phaseWord } from "./base/statuses.js";
import { ago, count, duration, moment, number, queueWords } from "./base/words.js";

const WIDE_PX = 60;
const NARROW_PX = 108;
const MOST_METRICS = 3;
const narrow = matchMedia("(max-width: 760px)");

/** Return how high a row is at this width of the window. */
export function rowHeight() {
  return narrow.matches ? NARROW_PX : WIDE_PX;
}

/** Make a row; `select` is called when it is chosen for a comparison. A job's `cameAtMs` is from `performance.now()`. */
export function jobRow(job, { isMarked, isSelected, select }) {
  const phase = phaseWord(job.status, job.secondary_status, job.state);
  const cell = (name, ...children) => element("div", { role: "cell", class: `cell-${name}` }, children);
  return element(
    "div",
    { class: `row${isMarked ? " row-marked" : ""}`, role: "row" },
    cell(
      "select",
      element("input", {
        type: "checkbox",
        checked: isSelected,
        "aria-label": `Select ${job.name}`,
        data: { part: "select" },
        on: { change: select },
      }),
    ),
    cell(
      "name",
      link(
        jobPath(job.name),
        { class: "name", data: { part: "name" }, title: job.name, "aria-label": job.name },
        nameParts(job.name),
      ),
      reason(job),
    ),
    cell(
      "status",
      badge(job.status, job.secondary_status, { state: job.state, withPhase: false }),
      phase && element("span", { class: "small faint cut" }, phase),
    ),
    cell("progress", progress(job)),
    cell("metrics", metrics(job)),
    cell(
      "hosts",
      element("span", {}, count(job.num_hosts, "host")),
      element("span", { class: "small faint cut" }, job.instance_type),
    ),
    cell("started", started(job)),
    cell("took", element("span", { class: "number" }, duration(took(job)))),
  );
}

/** Make a row of a job that is not loaded yet. */
export function skeletonRow(index = 0) {
  const bar = (width) =>
    element(
      "div",
      { role: "cell" },
      element("div", { class: "skeleton", style: { height: "14px", width: `${width}%` } }),
    );
  const made = element(
    "div",
    { class: "row", role: "row", "aria-hidden": "true" },
    element("div", {}),
    bar(70),
    bar(60),
    bar(80),
    bar(70),
    bar(60),
    bar(60),
    bar(50),
  );
  made.style.transform = `translateY(${index * rowHeight()}px)`;
  return made;
}

/** Make a bar of how far a job is; null where nobody knows. */
export function progressBar({ percent }, label) {
  const bounded = Math.max(0, Math.min(100, percent));
  return element(
    "div",
    {
      class: "progress",
      role: "progressbar",
      "aria-valuenow": Math.round(bounded),
      "aria-valuemin": 0,
      "aria-valuemax": 100,
      "aria-label": label,
    },
    element("div", { style: { width: `${bounded}%` } }),
  );
}

function started(job) {
  if (job.started_at) return element("span", { title: moment(job.started_at) }, ago(job.started_at));
  const created = `Created ${moment(job.created_at)}`;
  return element("span", { class: "faint", title: created }, isOver(job.status) ? "never" : "not yet");
}

function reason(job) {
  const why = [queueWords(job.queue), job.pending_reason || job.failure_reason].filter(Boolean).join(". ");
  return why
    ? element("span", { class: `small cut ${job.failure_reason ? "reason-bad" : "faint"}`, title: why }, why)
    : null;
}

function progress(job) {
  if (!Number.isFinite(job.progress?.percent)) return element("span", { class: "faint" }, "–");
  const left = isOver(job.status) || !job.progress.eta_s ? "" : `, ${duration(job.progress.eta_s)} left`;
  return [
    element("span", { class: "small number cut" }, `${Math.floor(job.progress.percent)} %${left}`),
    progressBar(job.progress, `Progress of ${job.name}`),
  ];
}

function metrics(job) {
  const few = (job.metrics ?? []).slice(0, MOST_METRICS);
  if (!few.length) return element("span", { class: "faint" }, "–");
  return few.map((metric) =>
    element(
      "span",
      { class: "metric", title: metric.name },
      element("span", { class: "faint cut" }, metric.name),
      element("span", { class: "number" }, number(metric.value)),
    ),
  );
}

function took(job) {
  if (isOver(job.status) || !job.started_at || job.duration_s === null) return job.duration_s;
  return job.duration_s + (performance.now() - job.cameAtMs) / 1000;
}
