// One job: its head with what can be done to it, and its tabs. Asks the service while the job lives.

import { get, ofJob } from "../base/api.js";
import { element, Kept, refill } from "../base/element.js";
import { icon } from "../base/icons.js";
import { useKeys } from "../base/keys.js";
import { empty, failure, skeleton } from "../base/places.js";
import { repeat } from "../base/repeating.js";
import { go, jobPath, link, listPath, tuningPath } from "../base/router.js";
import { serviceNow } from "../base/service_time.js";
import { badge, isOver } from "../base/statuses.js";
import { duration, moment } from "../base/words.js";
import { chartsTab } from "./job_charts.js";
import { logsTab } from "./job_logs.js";
import { overviewTab } from "./job_overview.js";
import { profilesTab } from "./job_profiles.js";
import { rehearsalsTab } from "./job_rehearsals.js";
import { reportTab } from "./job_report.js";
import { requestTab } from "./job_request.js";
import { stacksTab } from "./job_stacks.js";
import { rehearsalBadge, rehearsalWord } from "./rehearsal_words.js";
import { askRehearsal, rehearsalPath } from "./rehearse_dialog.js";
import { askRerun } from "./rerun_dialog.js";
import { askStop } from "./stop_dialog.js";

const EVERY_MS = 2000;
const NOT_FOUND = 404;
const STATES = { starting: "Starting", running: "Running", stopping: "Stopping" };
const OVER_MS = 15_000; // rules and pools of a job that has ended may still change
const TABS = {
  overview: ["Overview", overviewTab],
  logs: ["Logs", logsTab],
  charts: ["Charts", chartsTab],
  stacks: ["Stacks", stacksTab],
  profiles: ["Profiles", profilesTab],
  report: ["Report", reportTab],
  rehearsals: ["Rehearsals", rehearsalsTab],
  request: ["Request", requestTab],
};

/** Make the page. */
export function jobPage({ name, tab, signal }) {
  const kept = new Kept();
  const head = element("div", { class: "job-head" }, skeleton(30));
  const tabs = element("div", { class: "tabs", role: "tablist", "aria-label": "About this job" });
  const body = element("div", { role: "tabpanel", class: "tab-body", tabindex: "-1" }, skeleton(120, 220));
  tab = TABS[tab] ? tab : "overview";
  let facts = null;
  let shown = null; // {tab, made, ending}

  async function load() {
    const before = facts;
    const answer = await get(ofJob(name), {}, signal);
    facts = { ...answer, ...timesOf(answer), is_over: isOver(answer.status) };
    kept.show(head, headFacts(facts), () => makeHead(facts, load));
    if (shown && before) shown.made.update?.(facts);
    else showTab();
    if (facts.is_over && before?.is_over) await new Promise((resolve) => setTimeout(resolve, OVER_MS - EVERY_MS));
  }

  function showTab() {
    refill(
      tabs,
      Object.entries(TABS).map(([key, [text]]) => tabLink(name, key, text, key === tab)),
    );
    const selected = tabs.querySelector("[aria-selected=true]");
    tabs.scrollLeft = selected.offsetLeft + selected.offsetWidth - tabs.clientWidth;
    if (!facts || shown?.tab === tab) return;
    shown?.ending.abort();
    const ending = new AbortController();
    const [, make] = TABS[tab];
    const made = make({ name, facts: () => facts, signal: AbortSignal.any([signal, ending.signal]), again: load });
    shown = { tab, made, ending };
    body.setAttribute("aria-labelledby", `tab-${tab}`);
    refill(body, made.element);
    made.update?.(facts);
  }

  const numbered = Object.keys(TABS).map((key, index) => [String(index + 1), () => go(jobPath(name, key))]);
  useKeys({
    ...Object.fromEntries(numbered),
    Escape: () => go(listPath()),
    "/": () => body.querySelector("input[type=search]")?.focus(),
  });
  tabs.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step) return;
    const keys = Object.keys(TABS);
    go(jobPath(name, keys[(keys.indexOf(tab) + step + keys.length) % keys.length]));
    tabs.querySelector("[aria-selected=true]").focus();
  });
  showTab();
  // A job that does not exist is looked for no more: one of this name may be created, and then the page is loaded anew.
  const looked = async () => {
    try {
      await load();
    } catch (error) {
      if (error.status !== NOT_FOUND) throw error;
      shown?.ending.abort();
      refill(head, element("div", { class: "page-head" }, element("h1", {}, name)));
      tabs.hidden = true;
      refill(body, facts ? gone(name) : unknown(name));
      return false;
    }
    return undefined;
  };
  const again = repeat(looked, {
    everyMs: EVERY_MS,
    signal,
    failed: (error) => {
      if (facts || !error.status) return;
      refill(head, element("div", { class: "page-head" }, element("h1", {}, name)));
      refill(
        body,
        failure(error, () => again()),
      );
    },
  });
  return {
    title: name,
    element: element("div", {}, link(listPath(), { class: "back" }, icon("arrow"), "Jobs"), head, tabs, body),
    change: (where) => {
      tab = TABS[where.tab] ? where.tab : "overview";
      showTab();
    },
  };
}

function unknown(name) {
  return empty(
    "search",
    "There is no such job",
    `Nothing is known of a job ${name}: its name is another one, it was deleted, or it belongs to another service.`,
    link(`/console/jobs?search=${encodeURIComponent(name)}`, { class: "button" }, "Search jobs with this name"),
  );
}

function gone(name) {
  return empty(
    "close",
    "This job was deleted",
    `${name} is gone, with its log and metrics. What it wrote to S3 is still there.`,
    link(listPath(), { class: "button" }, "See all jobs"),
  );
}

function tabLink(name, key, text, isSelected) {
  const made = link(
    jobPath(name, key),
    { role: "tab", id: `tab-${key}`, "aria-selected": String(isSelected), tabindex: isSelected ? 0 : -1 },
    text,
  );
  return made;
}

function headFacts(facts) {
  return [
    facts.status,
    facts.secondary_status,
    facts.pending_reason,
    facts.state,
    facts.times,
    facts.name,
    facts.attempt,
    facts.hosts.length,
    facts.ended_at,
    facts.rehearsals,
    facts.rehearsal_of,
    facts.tuning_job,
    facts.is_over || Math.floor(Date.now() / EVERY_MS),
  ];
}

function makeHead(facts, again) {
  const num_hosts = facts.hosts.length || Object.keys(facts.lanes ?? {}).length;
  const parts = [
    ["Created", moment(facts.created_at)],
    (facts.state === "Queued" || facts.times.queued_s >= 1) && ["Queued", duration(facts.times.queued_s)],
    facts.times.started_at && ["Started", moment(facts.times.started_at)],
    ...["starting", "running", "stopping"].map(
      (state) => facts.times[`${state}_s`] > 0 && [STATES[state], duration(facts.times[`${state}_s`])],
    ),
    facts.times.took_s !== null && [facts.is_over ? "Took" : "At work for", duration(facts.times.took_s)],
    ["Hosts", `${num_hosts}${facts.hosts[0] ? ` × ${facts.hosts[0].instance_type}` : ""}`],
    facts.attempt > 1 && ["Attempt", `${facts.attempt}`],
    facts.rehearsals?.length > 0 && ["Rehearsed", rehearsed(facts.name, facts.rehearsals[0])],
    facts.tuning_job && ["Trial of", link(tuningPath(facts.tuning_job), {}, facts.tuning_job)],
    facts.rehearsal_of && [facts.rehearsal_of.role === "twin" ? "Twin of" : "Rehearsal of", origin(facts.rehearsal_of)],
    facts.progress?.percent !== undefined &&
      facts.progress?.percent !== null &&
      !facts.is_over && [
        "Progress",
        `${Math.floor(facts.progress.percent)} %${facts.progress.eta_s ? `, ${duration(facts.progress.eta_s)} left` : ""}`,
      ],
  ].filter(Boolean);
  const stop = element(
    "button",
    { class: "button", type: "button", on: { click: () => askStop(facts, again) } },
    icon("stop"),
    "Stop",
  );
  const rerun = element(
    "button",
    { class: "button", type: "button", on: { click: () => askRerun(facts) } },
    icon("play"),
    "Run again",
  );
  const rehearse = element(
    "button",
    { class: "button", type: "button", on: { click: () => askRehearsal(facts, again) } },
    icon("refresh"),
    "Rehearse",
  );
  return [
    element(
      "div",
      { class: "page-head" },
      element("h1", {}, facts.name),
      badge(facts.status, facts.secondary_status, { large: true, state: facts.state }),
      element("div", { class: "acts" }, rerun, rehearse, !facts.is_over && facts.status !== "Stopping" && stop),
    ),
    element(
      "dl",
      { class: "head-facts", "aria-label": "In short" },
      parts.map(([term, text]) =>
        element("div", {}, element("dt", {}, term), element("dd", { class: "number" }, text)),
      ),
    ),
  ];
}

/** When hosts began, as nothing is measured in the queue; of a job that never had one, its creation. And its end. */
function timesOf(facts) {
  const first = Object.values(facts.lanes ?? {}).map((lane) => lane.find(({ part }) => part !== "queued"));
  const begun = first.filter(Boolean).map((span) => span.start);
  const starts = (begun.length ? begun : facts.transitions.slice(0, 1).map((row) => row.started_at)).map(Date.parse);
  const last = facts.transitions.at(-1);
  const ended = isOver(facts.status) && last ? Date.parse(last.ended_at ?? last.started_at) : null;
  return { beginsAtMs: starts.length ? Math.min(...starts) : serviceNow(), endsAtMs: ended };
}

function rehearsed(name, newest) {
  const words = `Rehearsal ${newest.number}: ${rehearsalWord(newest)}`;
  return link(rehearsalPath(name, newest.number), { "aria-label": words }, rehearsalBadge(newest));
}

function origin({ job, number }) {
  return link(rehearsalPath(job, number), {}, `${job}, rehearsal ${number}`);
}
