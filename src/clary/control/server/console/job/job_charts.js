// Curves of a job: what its program reports, and what its hosts and ranks measure.

import { get, ofJob } from "../base/api.js";
import { element, refill } from "../base/element.js";
import { empty, failure, skeleton } from "../base/places.js";
import { repeat } from "../base/repeating.js";
import { query, setQuery } from "../base/router.js";
import { serviceNow } from "../base/service_time.js";
import { lossFirst, quantityWords, unitOf } from "../base/words.js";
import { bySteps, hasSteps, queryOf, STEPS, viewControls, viewed, viewOf } from "../charts/curve_view.js";
import { LineChart } from "../charts/line_chart.js";
import { SharedSteps } from "../charts/shared_steps.js";
import { SharedTime } from "../charts/shared_time.js";
import { picturesPart } from "./job_pictures.js";

const EVERY_MS = 3000;
const POINTS = 600;
const COLOURS = 8;
const AT = 0;
const MEAN = 3;
const SPANS = { all: "Whole job", 900: "Last 15 minutes", 3600: "Last hour", 21600: "Last 6 hours" };
const FIRST = [
  "host/cpu_percent",
  "host/memory_bytes",
  "gpu/utilisation_percent",
  "gpu/memory_percent",
  "host/network_received_bytes_s",
  "host/network_sent_bytes_s",
  "host/disk_read_bytes_s",
  "host/disk_write_bytes_s",
  "rank/step_s",
  "rank/cpu_percent",
  "rank/memory_bytes",
];
const SCOPES = { host: "", rank: "rank ", gpu: "GPU " };

/** Make the tab. */
export function chartsTab({ name, facts, signal }) {
  const asked = { span: "all", host: "", ...query() };
  const charts = new Map();
  const shared = new SharedTime();
  const steps = new SharedSteps();
  const view = viewOf(query());
  let curves = []; // names of metrics and their points, as the program reported them
  const training = element("div", { class: "charts" });
  const system = element("div", { class: "charts" }, skeleton(190, 190));
  const trainingHead = element("div", { class: "charts-head" }, element("h2", {}, "Training"));
  const span = element(
    "select",
    { "aria-label": "Time" },
    Object.entries(SPANS).map(([value, text]) => element("option", { value, selected: value === asked.span }, text)),
  );
  const host = element("select", { "aria-label": "Host" }, element("option", { value: "" }, "All hosts"));
  let isAll = false;
  const more = element(
    "button",
    {
      class: "button",
      type: "button",
      "aria-pressed": "false",
      on: { click: () => ((isAll = !isAll), more.setAttribute("aria-pressed", String(isAll)), anew()) },
    },
    "All series",
  );
  const systemHead = element("div", { class: "charts-head" }, element("h2", {}, "System"), host, more);
  const stepless = element("span", { class: "small faint", hidden: true }, "No steps were said: shown over time");
  const viewSaid = () => {
    setQuery({ span: asked.span === "all" ? "" : asked.span, host: asked.host, ...queryOf(view) });
    if (curves.length) showTraining();
  };
  trainingHead.append(span, ...viewControls(view, viewSaid), stepless);

  async function load() {
    const { since, until } = times(facts(), asked.span);
    // A tick of the whole span is seldom finer than what is kept; the service rounds it.
    const step = Math.max(1000, Math.ceil((until - since) / POINTS / 1000) * 1000);
    shared.setWhole(since, until);
    const names = isAll ? "*" : "host/*,rank-*,gpu-*";
    const measured = { names, host: asked.host, since_ms: since, until_ms: until, step_ms: step };
    const [, series] = await Promise.all([
      get(ofJob(name, "metric-values"), { points: POINTS }, signal).then(drawTraining),
      get(ofJob(name, "series"), measured, signal),
    ]);
    draw(system, groupsOf(series.series, isAll));
    if (!series.series.length)
      refill(
        system,
        empty(
          "chart",
          "Nothing was measured in this time",
          "Hosts measure from their preparation on. Choose a longer time, or wait for the job to get its hosts.",
        ),
      );
    showHosts(series.series.map((one) => one.host));
    return facts().is_over ? false : undefined;
  }

  function drawTraining({ metrics }) {
    curves = Object.entries(metrics)
      .filter(([, points]) => points.length)
      .sort(([one], [other]) => lossFirst(one, other));
    if (curves.length) showTraining();
    else refill(training, noMetrics());
  }

  /** Draw the curves as they are viewed; one whose points say no steps stays over time. */
  function showTraining() {
    const groups = curves.map(([metric, points]) => {
      const isBySteps = view.axis === STEPS && hasSteps([points]);
      const line = { key: metric, label: metric, colour: 0, points: isBySteps ? bySteps(points) : points };
      return {
        key: `metric ${isBySteps ? STEPS : ""} ${metric}`,
        title: metric,
        unit: "",
        shared: isBySteps ? steps : shared,
        lines: [viewed(line, view.smoothing)],
      };
    });
    const overSteps = groups.filter((group) => group.shared === steps).map((group) => group.lines[0].points);
    if (overSteps.length)
      steps.setWhole(
        Math.min(...overSteps.map((points) => points[0][AT])),
        Math.max(...overSteps.map((points) => points.at(-1)[AT])),
      );
    stepless.hidden = view.axis !== STEPS || overSteps.length > 0;
    draw(training, groups);
  }

  function draw(place, groups) {
    const made = groups.map((group) => {
      const key = `${group.key} ${asked.host}`;
      if (!charts.has(key)) charts.set(key, new LineChart({ shared, signal, ...group }));
      return [charts.get(key), group.lines];
    });
    const elements = made.map(([chart]) => chart.element);
    const isSame =
      elements.length === place.children.length && elements.every((one, index) => place.children[index] === one);
    if (!isSame) refill(place, elements);
    for (const [chart, lines] of made) chart.setLines(lines);
  }

  function showHosts(found) {
    const names = [...new Set([...[...host.options].slice(1).map((option) => option.value), ...found])].sort(byNumber);
    if (names.length === host.options.length - 1) return;
    refill(
      host,
      element("option", { value: "" }, "All hosts"),
      names.map((one) => element("option", { value: one, selected: one === asked.host }, one)),
    );
  }

  const ask = (change) => {
    Object.assign(asked, change);
    setQuery({ span: asked.span === "all" ? "" : asked.span, host: asked.host, ...queryOf(view) });
    shared.zoom(null);
    anew();
  };
  // Of a job that is over nothing is asked for by itself any more.
  const anew = () => (facts().is_over ? load().catch(() => {}) : again());
  span.addEventListener("change", () => ask({ span: span.value }));
  host.addEventListener("change", () => ask({ host: host.value }));
  const again = repeat(load, {
    everyMs: EVERY_MS,
    signal,
    failed: (error) =>
      error.status &&
      !charts.size &&
      refill(
        system,
        failure(error, () => again()),
      ),
  });
  const pictures = picturesPart({ name, facts, signal });
  return { element: element("div", {}, trainingHead, training, pictures.element, systemHead, system) };
}

/** Gather series by what they measure: a chart each, with a line for every host, rank and GPU. */
export function groupsOf(series, isAll = true) {
  const groups = new Map();
  const hosts = new Set(series.map((one) => one.host));
  for (const one of series) {
    const [scope, measured] = one.name.split("/");
    const [kind, index] = scope.split("-");
    const key = `${kind}/${measured}`;
    if (!isAll && !FIRST.includes(key)) continue;
    const points = one.points.filter((point) => point[MEAN] !== null).map((point) => [point[AT], point[MEAN]]);
    if (!points.length) continue;
    if (!groups.has(key)) groups.set(key, { key, title: titleOf(kind, one.name), unit: unitOf(one.name), lines: [] });
    const label = index === undefined ? one.host : hosts.size > 1 ? `${one.host} ${kind} ${index}` : `${kind} ${index}`;
    groups.get(key).lines.push({ key: `${one.host} ${scope}`, label, points });
  }
  for (const [key, group] of groups) {
    if (!isAll && group.lines.every((line) => line.points.every((point) => point[1] === 0))) groups.delete(key);
    group.lines.sort((one, other) => byNumber(one.key, other.key));
    group.lines.forEach((line, index) => (line.colour = index % COLOURS));
  }
  const place = (key) => (FIRST.includes(key) ? FIRST.indexOf(key) : FIRST.length);
  return [...groups.values()].sort(
    (one, other) => place(one.key) - place(other.key) || one.key.localeCompare(other.key),
  );
}

function titleOf(kind, name) {
  const words = `${SCOPES[kind] ?? `${kind} `}${quantityWords(name)}`;
  return words
    .replace(/^cpu/, "CPU")
    .replace(/ cpu$/, " CPU")
    .replace(/^./, (letter) => letter.toUpperCase());
}

function times(facts, span) {
  const until = Math.min(serviceNow(), facts.endsAtMs ?? Infinity) + 1;
  return { since: span === "all" ? facts.beginsAtMs : Math.max(0, until - Number(span) * 1000), until };
}

function noMetrics() {
  const text =
    "Give the job metric definitions, or let its program write TensorBoard files: their values are drawn here while it runs.";
  return empty("chart", "The program has reported no values", text);
}

function byNumber(one, other) {
  return one.localeCompare(other, "en", { numeric: true });
}
