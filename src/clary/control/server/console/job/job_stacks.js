// What every rank is doing: the last dump, ranks with the same stack together, who stands out first.

import { get, ofJob, post } from "../base/api.js";
import { element, refill } from "../base/element.js";
import { icon } from "../base/icons.js";
import { callout, empty, failure, panel, skeleton, toast } from "../base/places.js";
import { repeat } from "../base/repeating.js";
import { query, setQuery } from "../base/router.js";
import { count, moment } from "../base/words.js";
import { lastCollectives } from "./last_collectives.js";
import { otherProcesses } from "./other_processes.js";

const EVERY_MS = 4000;
const MOST_FRAMES = 14;

/** Make the tab. */
export function stacksTab({ name, facts, signal }) {
  const place = element("div", { class: "stacked" }, skeleton(60, 180));
  const numbers = element("select", { "aria-label": "Dump", hidden: true });
  const take = element(
    "button",
    { class: "button button-main", type: "button", on: { click: askDump } },
    icon("stack"),
    "Take stacks now",
  );
  let wanted = query().number ?? "";
  let shown = "";

  async function askDump() {
    take.disabled = true;
    try {
      wanted = String((await post(ofJob(name, "dump"))).number);
      setQuery({ number: "" });
      toast("Asked every host for its stacks", "stack");
      again();
    } catch (error) {
      toast(error.message, "warning");
    }
    update(facts());
  }

  async function load() {
    let page;
    try {
      page = await get(ofJob(name, "dump"), { number: wanted }, signal);
    } catch (error) {
      if (error.status !== 404) throw error;
      numbers.hidden = true;
      refill(place, none(facts().is_over));
      return;
    }
    const text = JSON.stringify(page);
    if (text === shown) return;
    shown = text;
    numbers.hidden = page.numbers.length < 2;
    refill(
      numbers,
      page.numbers.map((number, index) =>
        element(
          "option",
          { value: number, selected: number === page.number },
          `${moment(Number(number))}${index ? "" : ", newest"}`, // numbers are milliseconds since 1970
        ),
      ),
    );
    refill(place, dumpView(page));
  }

  const update = (now) => {
    take.disabled = now.is_over || !now.hosts.some((host) => host.phase.toLowerCase() === "running");
    take.title = take.disabled ? "No program of this job runs" : "";
  };
  numbers.addEventListener("change", () => ((wanted = numbers.value), setQuery({ number: wanted }), again()));
  const again = repeat(load, {
    everyMs: EVERY_MS,
    signal,
    failed: (error) =>
      error.status &&
      !shown &&
      refill(
        place,
        failure(error, () => again()),
      ),
  });
  return {
    element: element(
      "div",
      {},
      element("div", { class: "charts-head" }, element("h2", {}, "Stacks"), numbers, take),
      place,
    ),
    update,
  };
}

function dumpView(page) {
  const { autopsy } = page;
  const suspicions = autopsy.suspicions.map((item) =>
    callout(
      item.weight === "suspect" ? "bad" : item.weight === "note" ? "quiet" : "warn",
      "warning",
      `${item.weight === "suspect" ? "Suspect" : item.weight === "note" ? "Note" : "Waited for"}: ${item.who}`,
      item.why,
    ),
  );
  const missing = page.missing.length
    ? callout(
        "warn",
        "clock",
        "Not all hosts have answered",
        `${page.missing.join(", ")} ${page.missing.length === 1 ? "has" : "have"} not sent stacks yet.`,
      )
    : null;
  const verdict =
    !autopsy.suspicions.length && autopsy.groups.length > 0 && !page.missing.length
      ? callout("good", "check", "Nobody stands out", "No rank holds the others up.")
      : null;
  return [
    element(
      "p",
      { class: "soft dump-head" },
      `Attempt ${page.attempt}, ${count(page.hosts.length, "host")}, ${moment(page.asked_at)}: ${page.reason}`,
    ),
    missing,
    suspicions,
    verdict,
    lastCollectives(autopsy.collectives),
    element("div", { class: "stacks" }, autopsy.groups.map(groupView)),
    !autopsy.groups.length &&
      !page.missing.length &&
      empty("stack", "No rank could be looked at", errorsOf(page) || "The hosts found no process with a rank."),
    otherProcesses(page.dumps),
  ];
}

function groupView(group) {
  const names = group.members.map((member) => (member.rank === null ? `process ${member.pid}` : `rank ${member.rank}`));
  const hosts = [...new Set(group.members.map((member) => member.host))];
  const doing = `${group.doing}${group.operation ? ` in ${group.operation}` : ""}`;
  const title = `${count(group.members.length, "rank")}: ${doing}`;
  const frames = group.frames.slice(0, MOST_FRAMES);
  const rest = group.frames.slice(MOST_FRAMES);
  const line = (frame) =>
    element(
      "li",
      {},
      element("span", { class: "function" }, frame.function),
      element("span", { class: "faint" }, frame.line ? `${frame.file}:${frame.line}` : frame.file),
    );
  const made = panel(
    title,
    [
      element("p", { class: "soft small members" }, `${names.join(", ")} on ${hosts.join(", ")}`),
      element("ol", { class: "frames mono" }, frames.map(line)),
      rest.length > 0 &&
        element(
          "details",
          {},
          element("summary", { class: "small" }, `${rest.length} more calls`),
          element("ol", { class: "frames mono" }, rest.map(line)),
        ),
    ],
    { extra: group.is_odd && element("span", { class: "badge badge-warn" }, icon("warning"), "Stands out") },
  );
  if (group.is_odd) made.classList.add("panel-odd");
  return made;
}

function errorsOf(page) {
  return [
    ...new Set(
      Object.values(page.dumps).flatMap((dump) => [
        dump.error,
        ...dump.processes.filter((process) => process.rank !== null).map((process) => process.error),
      ]),
    ),
  ]
    .filter(Boolean)
    .join("; ");
}

function none(isOver) {
  const text = isOver
    ? "The job has ended, and nobody asked for stacks while it ran."
    : "Take them to see which line every rank is at. They are taken by themselves when a program gets nowhere.";
  return empty("stack", "No stacks were taken", text);
}
