// One tuning job: how its best objective came about, what mattered, all its trials. Asks the service while it goes on.

import { get } from "../base/api.js";
import { element, Kept, refill } from "../base/element.js";
import { icon } from "../base/icons.js";
import { useKeys } from "../base/keys.js";
import { callout, empty, failure, panel, skeleton } from "../base/places.js";
import { repeat } from "../base/repeating.js";
import { go, link } from "../base/router.js";
import { isOver } from "../base/statuses.js";
import { bestChart } from "./best_chart.js";
import { importanceBars } from "./importance_bars.js";
import { ParallelAxes } from "./parallel_axes.js";
import { TrialTable } from "./trial_table.js";
import { rangePanels, tuningHead } from "./tuning_facts.js";

const LIST = "/console/tuning";
const EVERY_MS = 3000;
const NOT_FOUND = 404;

/** Make the page. */
export function tuningJobPage({ name, signal }) {
  const kept = new Kept();
  const places = Object.fromEntries(
    ["head", "told", "best", "importance", "trials", "ranges"].map((key) => [key, element("div", {})]),
  );
  places.ranges.className = "tuning-ranges";
  const body = element("div", { class: "stacked" }, skeleton(240, 220));
  refill(places.head, skeleton(60));
  let page = null;
  let parts = null; // what is drawn of the trials
  let lookAgain = () => {};

  async function load() {
    page = await get(`tuning/${encodeURIComponent(name)}`, {}, signal);
    const { trials, definitions, ...facts } = page;
    const now = page.ended_at ? 0 : Math.floor(Date.now() / EVERY_MS);
    kept.show(places.head, [facts, now], () => tuningHead(page, () => lookAgain()));
    kept.show(
      places.told,
      [page.status, page.end_reason],
      () => page.status === "Failed" && callout("bad", "close", "Why it failed", page.end_reason),
    );
    kept.show(places.importance, [page.importance, page.importance_why], () => importanceBars(page));
    kept.show(places.ranges, definitions, () => rangePanels(page));
    parts ??= makeParts();
    parts.update();
    return isOver(page.status) ? false : undefined;
  }

  function makeParts() {
    const chart = bestChart({ signal, beginMs: Date.parse(page.created_at) });
    const axes = new ParallelAxes({ signal, pointed: (number) => table.mark(number) });
    const table = new TrialTable({ pointed: (number) => (axes.point(number), table.mark(number)) });
    refill(
      body,
      places.told,
      element("div", { class: "tuning-top" }, places.best, places.importance),
      places.trials,
      places.ranges,
    );
    return {
      update: () => {
        const hasBest = page.best_so_far.length > 0;
        kept.show(places.best, hasBest, () => (hasBest ? chart.element : panel("Best objective so far", noneYet())));
        if (hasBest) chart.update(page);
        kept.show(places.trials, page.trials.length > 0, (hasTrials) => hasTrials && [axes.element, table.element]);
        if (!page.trials.length) return;
        table.update(page);
        axes.update(page);
      },
    };
  }

  useKeys({ Escape: () => go(LIST) });
  const looked = async () => {
    try {
      return await load();
    } catch (error) {
      if (error.status !== NOT_FOUND) throw error;
      refill(places.head, element("div", { class: "page-head" }, element("h1", {}, name)));
      refill(body, unknown(name));
      return false;
    }
  };
  return {
    title: name,
    element: element(
      "div",
      { class: "tuning" },
      link(LIST, { class: "back" }, icon("arrow"), "Tuning"),
      element("div", { class: "job-head" }, places.head),
      body,
    ),
    shown: () => {
      const again = repeat(looked, {
        everyMs: EVERY_MS,
        signal,
        failed: (error) =>
          error.status &&
          !page &&
          refill(
            body,
            failure(error, () => again()),
          ),
      });
      lookAgain = again;
    },
  };
}

function noneYet() {
  return empty("clock", "No trial has told its objective yet", "The objective of a trial is known when its job has ended.");
}

function unknown(name) {
  return empty(
    "search",
    "There is no such tuning job",
    `Nothing is known of a tuning job ${name}: its name is another one, or it was deleted. Its training jobs stay.`,
    link(LIST, { class: "button" }, "See all tuning jobs"),
  );
}
