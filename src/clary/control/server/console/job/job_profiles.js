// Deep profiles of a job: those that were taken, one of them with where its steps went, and a button that takes another.

import { get, ofJob, post } from "../base/api.js";
import { element, refill } from "../base/element.js";
import { icon } from "../base/icons.js";
import { callout, empty, failure, skeleton, toast } from "../base/places.js";
import { repeat } from "../base/repeating.js";
import { query, setQuery } from "../base/router.js";
import { duration, moment } from "../base/words.js";
import { profileView } from "./profile_view.js";

const EVERY_MS = 2000;
const QUIET_MS = 10_000; // between looks for profiles that somebody else asked for
const DEFAULT_STEPS = 5;
const MOST_STEPS = 100;

/** Make the tab. */
export function profilesTab({ name, facts, signal }) {
  const place = element("div", { class: "stacked" }, skeleton(60, 180));
  const numbers = element("select", { "aria-label": "Profile", hidden: true });
  const steps = element("input", {
    type: "number",
    "aria-label": "Steps",
    min: 1,
    max: MOST_STEPS,
    value: DEFAULT_STEPS,
    class: "narrow",
  });
  const take = element("button", { class: "button button-main", type: "submit" }, icon("clock"), "Take a profile");
  const cancel = element("button", { class: "button", type: "button", hidden: true }, icon("stop"), "End it now");
  let page = null;
  let shown = "";
  let known = "";
  let askedAt = 0;

  async function ask(body, said) {
    take.disabled = cancel.disabled = true;
    try {
      await post(ofJob(name, "profile"), body);
      if (!body.cancel) setQuery({ number: "" });
      toast(said, "clock");
    } catch (error) {
      toast(error.message, "warning");
    }
    known = "";
    cancel.disabled = false;
    update(facts());
    again();
  }

  async function load() {
    const wanted = query().number ?? "";
    const isQuiet = facts().is_over || Date.now() - askedAt < QUIET_MS;
    if (page?.is_over && known === wanted && isQuiet) return;
    askedAt = Date.now();
    try {
      page = await get(ofJob(name, "profile"), { number: wanted }, signal);
    } catch (error) {
      if (error.status !== 404) throw error;
      page = null;
      numbers.hidden = cancel.hidden = true;
      shown = "";
      refill(place, wanted ? [callout("warn", "warning", "There is no such profile", error.message), newest()] : none());
      return;
    }
    known = page.is_over ? wanted : "";
    cancel.hidden = page.is_over || Boolean(page.ended);
    const text = JSON.stringify(page);
    if (text === shown) return;
    shown = text;
    numbers.hidden = page.profiles.length < 2;
    refill(
      numbers,
      page.profiles.map((one) => element("option", { value: one.number, selected: one.number === page.number }, label(one))),
    );
    refill(place, profileView(page));
  }

  function newest() {
    const show = () => (setQuery({ number: "" }), again());
    return element("p", {}, element("button", { class: "button", type: "button", on: { click: show } }, "Show the newest"));
  }

  function none() {
    const text = canBeTaken(facts())
      ? "Take one of a few steps to see where their time goes: computing, communication that nothing hides, waits for data. The script needs no change."
      : facts().is_over
        ? "The job has ended, and nobody asked for a profile while it ran."
        : "One can be taken as soon as its program runs.";
    return empty("clock", "No profile was taken", text);
  }

  const update = (now) => {
    take.disabled = !canBeTaken(now);
    take.title = take.disabled ? "No program of this job runs" : "";
  };
  const form = element(
    "form",
    {
      class: "inline-form",
      on: {
        submit: (event) => {
          event.preventDefault();
          const amount = Math.round(Number(steps.value)) || DEFAULT_STEPS;
          ask({ steps: amount }, `Asked every rank for a profile of ${amount} steps`);
        },
      },
    },
    take,
    "of",
    steps,
    "steps",
  );
  numbers.addEventListener("change", () => (setQuery({ number: numbers.value }), again()));
  cancel.addEventListener("click", () => ask({ cancel: true }, "It ends with the step that runs"));
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
      element("div", { class: "charts-head" }, element("h2", {}, "Profiles"), numbers, cancel, form),
      place,
    ),
    update,
  };
}

function canBeTaken(facts) {
  return !facts.is_over && facts.hosts.some((host) => host.phase.toLowerCase() === "running");
}

function label(one) {
  const window = one.num_steps ? `${one.num_steps} ${one.num_steps === 1 ? "step" : "steps"}` : duration(one.duration_s);
  return `${moment(one.asked_at)}: ${window}${one.is_over ? "" : ", being taken"}`;
}
