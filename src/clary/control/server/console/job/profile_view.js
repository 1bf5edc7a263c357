// One profile: where each rank's steps went, who comes late to collectives, which operations took longest, its traces.

import { address, ofJob } from "../base/api.js";
import { element } from "../base/element.js";
import { icon } from "../base/icons.js";
import { callout, panel } from "../base/places.js";
import { count, moment, number } from "../base/words.js";
import { table } from "./certificate.js";
import { rankStrips } from "./rank_strips.js";

const MOST_OPERATIONS = 10;
const MOST_RANKS = 256; // of a table

/** Make the view of what the service says of a profile. */
export function profileView(page) {
  const summary = page.summary ?? { ranks: [], errors: [], skew: {}, clocks: {} };
  const ranks = summary.ranks.filter((rank) => rank.compute_share !== undefined);
  const failed = summary.ranks.filter((rank) => rank.compute_share === undefined);
  const errors = summary.errors ?? [];
  return [
    element(
      "p",
      { class: "soft dump-head" },
      `Attempt ${page.attempt}, ${count(page.hosts.length, "host")}, ${moment(page.asked_at)}: ${page.reason}`,
    ),
    !page.is_over && taking(page),
    ...failed.map((rank) => callout("warn", "warning", `Rank ${rank.rank} (${rank.host}) has no trace`, whyOf(rank, page))),
    ...errors.map((text) =>
      callout("warn", "warning", ranks.length ? "Not all of it is here" : "Nothing was recorded", text),
    ),
    page.is_over &&
      !ranks.length &&
      !failed.length &&
      !errors.length &&
      callout("warn", "warning", "Nothing was recorded", page.ended || "No rank has answered."),
    ranks.length > 0 && panel("Ranks over time", rankStrips(ranks)),
    ranks.length > 0 && panel("Where the steps went", ranksTable(ranks)),
    collectives(summary.skew ?? {}),
    ranks.length > 0 && operations(ranks),
    ranks.length > 0 && traces(page, summary, ranks),
  ];
}

function taking(page) {
  const counts = new Map();
  for (const { state } of page.states) counts.set(state, (counts.get(state) ?? 0) + 1);
  const states = [...counts].map(([state, amount]) => `${count(amount, "rank")} ${state}`).join(", ");
  const step = Math.max(0, ...page.states.map((rank) => rank.step));
  const text = states ? `${states}${step ? `, at step ${number(step)}` : ""}.` : "Every host was asked.";
  const missing = page.missing.length ? ` Not answered yet: ${page.missing.join(", ")}.` : "";
  const said = [...new Set([...page.states.map((rank) => rank.words), ...page.errors].filter(Boolean))].join("; ");
  return callout("quiet", "clock", page.ended ? "It is put together" : "It is being taken", text + missing, page.ended || said);
}

function whyOf(rank, page) {
  return rank.words || page.ended || `It is ${rank.state}.`;
}

function ranksTable(ranks) {
  const shown = ranks.slice(0, MOST_RANKS);
  const hasWords = shown.some((rank) => rank.words);
  const rows = shown.map((rank) => [
    number(rank.rank),
    rank.host,
    rank.num_steps ? `${rank.first_step}–${rank.first_step + rank.num_steps - 1}` : milliseconds(rank.window_ms),
    rank.step_ms === null ? "–" : milliseconds(rank.step_ms),
    rank.longest_step_ms === null ? "–" : milliseconds(rank.longest_step_ms),
    percent(rank.compute_share),
    percent(rank.communication_share),
    element("strong", {}, percent(rank.exposed_communication_share)),
    percent(rank.data_wait_share),
    percent(rank.rest_share),
    number(rank.num_collectives),
    ...(hasWords ? [element("span", { class: "said" }, rank.words)] : []),
  ]);
  const head = ["Rank", "Host", "Steps", "A step", "Longest", "Compute", "Communication"];
  return [
    table([...head, "Exposed", "Data wait", "Rest", "Collectives", ...(hasWords ? ["Note"] : [])], rows),
    element(
      "p",
      { class: "small soft below" },
      "Shares of the whole window. Exposed is communication that neither computing nor a wait for data hides.",
    ),
    ranks.length > shown.length && element("p", { class: "faint small" }, `and ${ranks.length - shown.length} more ranks`),
  ];
}

function collectives(skew) {
  if (!skew.num_collectives) return null;
  const [who, times] = Object.entries(skew.last).sort((one, other) => other[1] - one[1])[0];
  const behind = skew.mean_behind_ms?.[who];
  const words =
    `${count(skew.num_collectives, "collective")} of all ranks. From the first rank's arrival to the last one's: ` +
    `${milliseconds(skew.median_ms)} in the median, ${milliseconds(skew.greatest_ms)} at most. ` +
    `Rank ${who} comes last ${times === 1 ? "once" : `${times} times`}` +
    `${behind === undefined ? "" : `, ${milliseconds(behind)} behind the first on average`}.`;
  const rows = skew.greatest.map((row) => [
    number(row.step),
    element("span", { class: "mono said" }, row.name),
    milliseconds(row.skew_ms),
    `rank ${row.last}`,
  ]);
  return panel("Collectives across ranks", [
    element("p", { class: "soft" }, words),
    table(["Step", "Collective", "Skew", "Last"], rows),
  ]);
}

function operations(ranks) {
  const sums = new Map();
  for (const rank of ranks)
    for (const item of rank.top) {
      const entry = sums.get(item.name) ?? { tookMs: 0, calls: 0 };
      entry.tookMs += item.self_ms;
      entry.calls += item.count;
      sums.set(item.name, entry);
    }
  const windowMs = ranks.reduce((sum, rank) => sum + rank.window_ms, 0) || 1;
  const rows = [...sums]
    .sort((one, other) => other[1].tookMs - one[1].tookMs)
    .slice(0, MOST_OPERATIONS)
    .map(([name, entry]) => [
      element("span", { class: "mono said" }, name),
      milliseconds(entry.tookMs / ranks.length),
      share(entry.tookMs / windowMs),
      number(entry.calls),
    ]);
  const title = ranks.some((rank) => rank.on_accelerator) ? "Longest kernels" : "Longest operations";
  return panel(title, table(["Operation", "By itself, a rank", "Share", "Calls"], rows));
}

function traces(page, summary, ranks) {
  const file = (name, text, isMain) =>
    element(
      "a",
      {
        class: `button${isMain ? " button-main" : ""}`,
        href: `${address(ofJob(page.job, "profile"))}?number=${page.number}&file=${encodeURIComponent(name)}`,
        download: `${page.job}-${page.number}-${name}`,
      },
      icon("down"),
      text,
    );
  const spread = summary.clocks?.spread_us;
  const clocks = `${summary.clocks?.method ?? "not known"}${spread === null || spread === undefined ? "" : `, within ${milliseconds(spread / 1000)}`}`;
  return panel("Traces", [
    element(
      "p",
      { class: "soft" },
      `All ranks on one axis, for a trace viewer (ui.perfetto.dev). Clocks of the ranks: ${clocks}.`,
    ),
    element(
      "div",
      { class: "downloads" },
      summary.merged && file(summary.merged, "Download the merged trace", true),
      file("summary.json", "Summary as JSON", false),
    ),
    element(
      "details",
      {},
      element("summary", { class: "small" }, "Traces by rank"),
      element(
        "div",
        { class: "downloads" },
        ranks.filter((rank) => rank.trace).map((rank) => file(rank.trace, `Rank ${rank.rank}`, false)),
      ),
    ),
  ]);
}

function share(value) {
  const width = `${Math.min(100, 100 * value).toFixed(1)}%`;
  return element(
    "span",
    { class: "share" },
    element("span", { class: "share-bar", "aria-hidden": "true" }, element("span", { style: { width } })),
    percent(value),
  );
}

function percent(value) {
  return `${(100 * value).toFixed(1)} %`;
}

function milliseconds(value) {
  if (value === null || value === undefined) return "–";
  if (value >= 1000) return `${(value / 1000).toFixed(2)} s`;
  if (value > 0 && value < 0.01) return `${value.toPrecision(2)} ms`;
  return `${value.toFixed(value < 10 ? 2 : 1)} ms`;
}
