// Rehearsals of a job: the one under way, followed live, and the certificates of those that are over.

import { get, ofJob, post } from "../base/api.js";
import { element, refill } from "../base/element.js";
import { icon } from "../base/icons.js";
import { callout, copyButton, empty, failure, panel, skeleton, toast } from "../base/places.js";
import { repeat } from "../base/repeating.js";
import { jobPath, link, query, setQuery } from "../base/router.js";
import { serviceNow } from "../base/service_time.js";
import { badge } from "../base/statuses.js";
import { duration, moment } from "../base/words.js";
import { certificateView } from "./certificate.js";
import { rehearsalBadge, rehearsalWord, sentence } from "./rehearsal_words.js";
import { askRehearsal } from "./rehearse_dialog.js";

const EVERY_MS = 2000;
const RUNNING = "running";
const WHY = {
  failed: ["bad", "close", "It could not be carried out"],
  cancelled: ["quiet", "stop", "It was cancelled"],
  interrupted: ["warn", "warning", "It was interrupted"],
};

/** Make the tab. */
export function rehearsalsTab({ name, facts, signal, again: reload }) {
  const head = element("div", {});
  const place = element("div", { class: "stacked" }, skeleton(60, 180));
  const numbers = element("select", { "aria-label": "Rehearsal", hidden: true });
  const cancel = element("button", { class: "button", type: "button", hidden: true }, icon("stop"), "Cancel it");
  let page = null;
  let shown = "";
  let known = "";
  let open = null; // ends what the shown certificate listens to

  async function load() {
    const wanted = query().number ?? "";
    const listed = JSON.stringify([wanted, facts().rehearsals]);
    const wasRunning = page?.rehearsal?.state === RUNNING;
    if (page && page.rehearsal?.state !== RUNNING && listed === known) return;
    try {
      page = await get(ofJob(name, "rehearsals"), { number: wanted }, signal);
    } catch (error) {
      if (error.status !== 404) throw error;
      page = { rehearsals: facts().rehearsals ?? [], rehearsal: null };
      refill(place, callout("warn", "warning", "There is no such rehearsal", error.message), newest());
      shown = "";
      known = listed;
      return showNumbers();
    }
    known = listed;
    showNumbers();
    if (wasRunning && page.rehearsal?.state !== RUNNING) reload(); // the head of the page says it too
    const text = JSON.stringify(page.rehearsal);
    const elapsed = place.querySelector("[data-elapsed]");
    if (elapsed && page.rehearsal) elapsed.textContent = took(page.rehearsal);
    if (text === shown) return;
    shown = text;
    open?.abort();
    open = new AbortController();
    const own = AbortSignal.any([signal, open.signal]);
    const log = place.querySelector("[role=log]");
    const wasAtEnd = !log || log.scrollTop + log.clientHeight >= log.scrollHeight - 4;
    const top = log?.scrollTop ?? 0;
    refill(place, page.rehearsal ? rehearsalView(page.rehearsal, own) : none(() => askRehearsal(facts(), reload)));
    const now = place.querySelector("[role=log]");
    if (now) now.scrollTop = wasAtEnd ? now.scrollHeight : top;
  }

  function showNumbers() {
    cancel.hidden = page.rehearsal?.state !== RUNNING;
    cancel.disabled = false;
    const chosen = page.rehearsal?.number;
    const isSame = [...numbers.options].map((option) => option.dataset.word).join() === words(page).join();
    if (!isSame)
      refill(
        numbers,
        page.rehearsals.map((one) =>
          element(
            "option",
            { value: one.number, data: { word: wordsOf(one) } },
            `Rehearsal ${one.number}: ${rehearsalWord(one)}`,
          ),
        ),
      );
    numbers.hidden = page.rehearsals.length < 2;
    if (chosen !== undefined) numbers.value = String(chosen);
  }

  function newest() {
    const show = () => (setQuery({ number: "" }), again());
    return element("p", {}, element("button", { class: "button", type: "button", on: { click: show } }, "Show the newest"));
  }

  numbers.addEventListener("change", () => (setQuery({ number: numbers.value }), again()));
  cancel.addEventListener("click", async () => {
    cancel.disabled = true;
    try {
      await post(ofJob(name, "rehearsals"), { cancel: page.rehearsal.number });
      toast(`Rehearsal ${page.rehearsal.number} is being cancelled`, "stop");
    } catch (error) {
      toast(error.message, "warning");
    }
    again();
  });
  refill(
    head,
    element("div", { class: "charts-head" }, element("h2", {}, "Rehearsals"), numbers, cancel),
  );
  const again = repeat(load, {
    everyMs: EVERY_MS,
    signal,
    failed: (error) =>
      error.status &&
      !page &&
      refill(
        place,
        failure(error, () => again()),
      ),
  });
  return {
    element: element("div", {}, head, place),
    update: () => page && page.rehearsal?.state !== RUNNING && again(),
  };
}

function words(page) {
  return page.rehearsals.map(wordsOf);
}

function wordsOf(one) {
  return `${one.number} ${rehearsalWord(one)}`;
}

function rehearsalView(rehearsal, signal) {
  const isRunning = rehearsal.state === RUNNING;
  const [kind, drawing, title] = WHY[rehearsal.state] ?? [];
  return [
    element(
      "p",
      { class: "soft dump-head" },
      `Rehearsal ${rehearsal.number}, `,
      rehearsalBadge(rehearsal),
      ` begun ${moment(rehearsal.started_at)}, `,
      element("span", { class: "number", data: { elapsed: "" } }, took(rehearsal)),
    ),
    title && callout(kind, drawing, title, sentence(rehearsal.why)),
    isRunning && panel("Under way", [stages(rehearsal), faults(rehearsal.faults)]),
    rehearsal.certificate && certificateView(rehearsal.certificate, signal),
    !isRunning && panel("Its jobs", [stages(rehearsal), !rehearsal.certificate && faults(rehearsal.faults)]),
    said(rehearsal),
    element(
      "div",
      { class: "command" },
      element("code", {}, rehearsal.command),
      copyButton(() => rehearsal.command),
    ),
  ];
}

function took(rehearsal) {
  const end = rehearsal.ended_at ? Date.parse(rehearsal.ended_at) : serviceNow();
  const passed = duration(Math.max(0, end - Date.parse(rehearsal.started_at)) / 1000);
  return rehearsal.ended_at ? `took ${passed}` : `${passed} so far`;
}

function stages(rehearsal) {
  const { twin, rehearsal: struck } = rehearsal.jobs;
  const isOver = rehearsal.state !== RUNNING;
  const gone = rehearsal.verdict === "PASS" ? "Deleted" : "Not there";
  const row = (title, job, words) =>
    element(
      "li",
      {},
      element("strong", {}, title),
      job.status ? link(jobPath(job.name), {}, job.name) : element("span", { class: "faint" }, job.name),
      job.status
        ? badge(job.status, job.secondary_status, { state: job.state })
        : element("span", { class: "badge badge-quiet" }, isOver ? gone : words),
      job.attempt > 1 && element("span", { class: "soft" }, `attempt ${job.attempt}`),
      job.failure_reason && element("p", { class: "soft said" }, job.failure_reason),
    );
  return element(
    "ol",
    { class: "stages" },
    row("Twin", twin, "Not created yet"),
    row("Rehearsal", struck, "Waits for the twin"),
  );
}

function faults(texts) {
  return element(
    "ul",
    { class: "told-list", "aria-label": "Faults" },
    texts.map((text) => element("li", {}, text)),
  );
}

function said(rehearsal) {
  if (!rehearsal.lines.length) return null;
  const log = element(
    "div",
    { class: "said-lines mono", role: "log", tabindex: "0", "aria-label": "What it said" },
    rehearsal.lines.map((line) => element("div", {}, line || " ")),
  );
  return rehearsal.state === RUNNING
    ? panel("What it says", log)
    : element("details", {}, element("summary", { class: "small" }, "What it said"), log);
}

function none(begin) {
  const button = element(
    "button",
    { class: "button button-main", type: "button", on: { click: begin } },
    icon("refresh"),
    "Rehearse this job",
  );
  return empty(
    "refresh",
    "This job was never rehearsed",
    "Run it again under faults, beside a twin that nothing disturbs, and see whether it comes back as it was.",
    button,
  );
}
