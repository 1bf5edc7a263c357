// The tab that says most: why it failed or waits, where the time went, what each host did, what rules found.

import { get, ofJob } from "../base/api.js";
import { element, Kept } from "../base/element.js";
import { icon } from "../base/icons.js";
import { callout, panel } from "../base/places.js";
import { repeat } from "../base/repeating.js";
import { duration, instant, moment, newDate, number, queueWords } from "../base/words.js";
import { sparkline } from "../charts/sparkline.js";
import { progressBar } from "../job_row.js";
import { checkpoints } from "./job_checkpoints.js";
import { downloads } from "./job_downloads.js";
import { failureParts } from "./job_failure.js";
import { lanes } from "./job_lanes.js";
import { ledger } from "./job_ledger.js";
import { rules } from "./job_rules.js";

const EVERY_MS = 4000;
const POINTS = 80; // of a small curve
const KINDS = { status: "quiet", cause: "bad", failure: "warn", cascade: "quiet" };
const WORDS = { status: "Status", cause: "First cause", failure: "Failure", cascade: "Follows" };

/** Make the tab. */
export function overviewTab({ name, facts: current, signal }) {
  const kept = new Kept();
  let curves = {};
  let why = null; // what the process said last that failed first; undefined while it is asked for
  const place = () => element("div", {});
  const places = {
    told: place(),
    progress: place(),
    lanes: place(),
    ledger: place(),
    timeline: place(),
    rules: place(),
    metrics: place(),
    warnings: place(),
    hosts: place(),
    checkpoints: place(),
    downloads: place(),
    facts: place(),
  };
  const wide = [places.told, places.progress, places.rules, places.lanes, places.ledger, places.hosts, places.timeline];
  const side = [places.metrics, places.warnings, places.downloads, places.checkpoints, places.facts];
  const update = (facts) => {
    if (facts.cause && why === null) askWhy();
    kept.show(
      places.told,
      [facts.cause, facts.failure_reason, facts.pending_reason, facts.queue, facts.stragglers, alarms(facts), why],
      () => told(facts, why),
    );
    kept.show(places.progress, [facts.progress, facts.is_over], () => facts.status !== "Completed" && progress(facts));
    kept.show(
      places.lanes,
      [facts.lanes, facts.past_attempts],
      () => hadHosts(facts) && panel("Hosts over time", lanes(facts)),
    );
    kept.show(
      places.ledger,
      facts.ledger,
      () => hadHosts(facts) && facts.ledger.wall_s > 0 && panel("Time and money", ledger(facts.ledger)),
    );
    kept.show(places.rules, facts.rules, () => rules(facts));
    kept.show(
      places.timeline,
      facts.timeline,
      () =>
        facts.timeline.length > 0 &&
        panel(facts.cause ? "What happened, and what came of it" : "What happened", timeline(facts.timeline)),
    );
    kept.show(
      places.metrics,
      [facts.metrics, curves],
      () => facts.metrics.length > 0 && panel("Last metrics", metrics(facts.metrics, curves)),
    );
    kept.show(places.hosts, facts.hosts, () => facts.hosts.length > 0 && panel("Hosts", hosts(facts.hosts)));
    kept.show(places.warnings, [facts.warnings, facts.emulation, facts.not_isolated], () => [
      notes("Warnings", facts.warnings, "warning"),
      notes("Emulation", facts.emulation, "system"),
      notes("Not isolated", facts.not_isolated, "warning"),
    ]);
    kept.show(places.downloads, [facts.is_over, facts.attempt, facts.model_artifacts_uri], () => facts.attempt > 0 && downloads(facts));
    kept.show(places.checkpoints, facts.checkpoints, () => checkpoints(facts.checkpoints));
    kept.show(
      places.facts,
      [facts.arn, facts.image, facts.environment, facts.model_artifacts_uri, facts.warm_pool],
      () => panel("About", about(facts)),
    );
  };
  async function askWhy() {
    why = undefined;
    try {
      why = await get(ofJob(name, "why"), {}, signal);
      update(current());
    } catch {
      why = null; // asked for again with the next look at the job
    }
  }
  update(current());
  const load = async () => {
    curves = (await get(ofJob(name, "metric-values"), { points: POINTS }, signal)).metrics;
    update(current());
    return current().is_over ? false : undefined;
  };
  repeat(load, { everyMs: EVERY_MS, signal, failed: () => {} });
  return { element: element("div", { class: "overview" }, element("div", {}, wide), element("div", {}, side)), update };
}

/** Whether the job has had hosts: one that only waits uses none, well or badly. */
function hadHosts(facts) {
  return facts.ledger.num_attempts > 0 && Object.values(facts.lanes ?? {}).some((lane) => lane.length);
}

function told(facts, why) {
  const parts = alarms(facts).map((text) => callout("warn", "warning", "It seems to stand still", text));
  if (facts.cause) {
    parts.push(...failureParts(facts, why));
  } else if (facts.failure_reason) {
    parts.push(callout("bad", "close", "Why it ended", facts.failure_reason));
  }
  if (facts.pending_reason) {
    const estimate = facts.queue && `${queueWords(facts.queue)} (${facts.queue.estimate}).`;
    parts.push(callout("quiet", "clock", "Why it waits", facts.pending_reason, estimate || ""));
  }
  if (facts.stragglers?.is_found)
    parts.push(callout("warn", "warning", "The others wait for one", facts.stragglers.text));
  return parts;
}

function alarms(facts) {
  return facts.hosts.filter((host) => host.standstill).map((host) => `${host.name}: ${host.standstill}`);
}

function progress({ progress: made, is_over }) {
  if (!Number.isFinite(made?.percent)) return null;
  const amounts =
    Number.isFinite(made.done) && Number.isFinite(made.total)
      ? `${number(made.done)} of ${number(made.total)} ${made.unit ?? ""}`
      : "";
  const left = is_over ? "" : Number.isFinite(made.eta_s) ? `${duration(made.eta_s)} left` : "";
  const line = element(
    "div",
    { class: "progress-line" },
    element("strong", { class: "number" }, `${Math.floor(made.percent)} %`),
    element("span", { class: "soft number" }, [amounts, left].filter(Boolean).join(", ")),
  );
  return panel("Progress", [line, progressBar(made, "Progress")]);
}

function metrics(values, curves) {
  const tile = (metric) =>
    element(
      "div",
      { title: metric.name },
      element("dt", { class: "cut" }, metric.name),
      element("dd", { class: "number" }, number(metric.value)),
      sparkline(Object.hasOwn(curves, metric.name) ? curves[metric.name] : []),
    );
  return element("dl", { class: "tiles" }, values.map(tile));
}

function eventDay(row, before) {
  const date = newDate(row.at, before?.at);
  return date && element("div", {}, date);
}

function timeline(rows) {
  const made = rows.map((row, index) =>
    element(
      "li",
      { class: `event event-${row.kind}` },
      element(
        "time",
        { class: "number faint", datetime: row.at, title: moment(row.at) },
        eventDay(row, rows[index - 1]),
        instant(row.at),
      ),
      element(
        "div",
        {},
        row.kind !== "status" &&
          element(
            "span",
            { class: `badge badge-${KINDS[row.kind] ?? "quiet"} badge-plain` },
            WORDS[row.kind] ?? row.kind,
          ),
        row.where && element("span", { class: "soft" }, ` ${row.where} `),
        element("span", { class: "said" }, `${row.kind === "status" ? "" : " "}${row.what}`),
      ),
    ),
  );
  return element("ol", { class: "events" }, made);
}

function hosts(rows) {
  const cells = (host) => [
    host.name,
    host.phase,
    `${host.processes_per_host}`,
    host.address,
    Object.entries(host.timings_s)
      .map(([part, seconds]) => `${part.replaceAll("_", " ")} ${duration(seconds)}`)
      .join(", ") || "–",
    host.exits || "–",
  ];
  const head = ["Host", "Phase", "Processes", "Address", "Took", "Exits"];
  const SHORT_COLUMNS = 4; // words that are not broken over lines; the others keep a width on a phone
  return element(
    "div",
    { class: "scroll", tabindex: "0" },
    element(
      "table",
      {},
      element(
        "thead",
        {},
        element(
          "tr",
          {},
          head.map((text) => element("th", { scope: "col" }, text)),
        ),
      ),
      element(
        "tbody",
        {},
        rows.map((host) =>
          element(
            "tr",
            {},
            cells(host).map((text, column) =>
              element("td", { class: column < SHORT_COLUMNS ? "number short" : "number wide" }, text),
            ),
          ),
        ),
      ),
    ),
  );
}

function notes(title, texts, drawing) {
  if (!texts?.length) return null;
  return panel(
    title,
    element(
      "ul",
      { class: "notes" },
      texts.map((text) => element("li", {}, icon(drawing), element("span", {}, text))),
    ),
    { extra: element("span", { class: "faint number" }, texts.length) },
  );
}

function about(facts) {
  const pool =
    facts.warm_pool &&
    `${facts.warm_pool.status}${facts.warm_pool.keep_alive_s ? `, kept ${duration(facts.warm_pool.keep_alive_s)}` : ""}`;
  const rows = [
    ["Image", facts.image],
    ["Runs in", facts.environment],
    ["Isolation", facts.isolation],
    ["Model", facts.model_artifacts_uri],
    ["Warm pool", pool],
    ["ARN", facts.arn],
  ];
  return element(
    "dl",
    { class: "about" },
    rows.filter(([, text]) => text).map(([term, text]) => [element("dt", {}, term), element("dd", {}, text)]),
  );
}
