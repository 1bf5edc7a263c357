// Rehearsing a job: the faults are chosen, what it costs is said, and the job's name typed, before it begins.

import { get, ofJob, post } from "../base/api.js";
import { element, refill } from "../base/element.js";
import { closeButton, copyButton, openDialog, toast } from "../base/places.js";
import { go, jobPath } from "../base/router.js";
import { isOver } from "../base/statuses.js";
import { count, dollars, duration } from "../base/words.js";
import { faultChoices, field, number } from "./fault_choices.js";

const SHARE = 0.4; // of the job, at which faults strike unless chosen: there is something to lose, and time to recover
const DEFAULT_AT_S = 60;
const LEAST_AT_S = 3;
const MOST_DRAWN = 16;
const MOST_SEED = 2 ** 31 - 1;
const PLAIN_WORD = /^[\w@%+=:,./-]+$/;

/** Ask which faults to rehearse a job under, and begin; `done` runs when it has begun. */
export async function askRehearsal(facts, done) {
  let options;
  try {
    options = await get(ofJob(facts.name, "rehearsals"), { options: 1 });
  } catch (error) {
    toast(error.message, "warning");
    return;
  }
  if (options.under_way !== null) {
    toast(`Rehearsal ${options.under_way} is under way`, "refresh");
    return go(rehearsalPath(facts.name, options.under_way));
  }
  open(facts, options, done);
}

/** Return the address of a rehearsal. */
export function rehearsalPath(name, which) {
  return `${jobPath(name, "rehearsals")}?number=${which}`;
}

function open(facts, options, done) {
  const choices = faultChoices(options, usualMoment(facts, options));
  const drawn = number(0, { min: 0, max: MOST_DRAWN });
  const seed = number("", { min: 0, max: MOST_SEED, placeholder: "a new one" });
  const together = element("input", { type: "checkbox" });
  const keep = element("input", { type: "checkbox" });
  const steps = element("input", { type: "text", autocomplete: "off", placeholder: "step ([0-9]+)" });
  const losses = element("input", { type: "text", autocomplete: "off", placeholder: "loss=([0-9.]+)" });
  const typed = element("input", { type: "text", autocomplete: "off", spellcheck: "false" });
  const told = element("ul", { class: "told" });
  const code = element("code", {});
  const wrong = element("p", { class: "reason-bad", role: "alert" });
  const begin = element("button", { class: "button button-main", type: "submit", disabled: true }, "Start the rehearsal");
  let isSent = false;

  const order = () => {
    const { faults, diskSize } = choices.chosen();
    return {
      faults,
      random: Math.round(Number(drawn.value)) || 0,
      seed: seed.value === "" ? null : Math.round(Number(seed.value)),
      together: together.checked,
      keep: keep.checked,
      disk_size: faults.some((fault) => fault.kind === "disk-full") ? diskSize : "",
      step_regex: steps.value,
      loss_regex: losses.value,
    };
  };
  const show = () => {
    const wanted = order();
    code.textContent = commandOf(facts.name, wanted);
    refill(
      told,
      costs(facts, options, wanted).map((text) => element("li", {}, text)),
    );
    begin.disabled = isSent || typed.value !== facts.name || !(wanted.faults.length || wanted.random);
  };
  const submit = async (dialog) => {
    if (begin.disabled) return;
    isSent = true;
    wrong.textContent = "";
    show();
    try {
      const answer = await post(ofJob(facts.name, "rehearsals"), { ...order(), confirm: typed.value });
      dialog.close();
      toast(`Rehearsal ${answer.number} has begun`, "refresh");
      go(rehearsalPath(facts.name, answer.number));
      done();
    } catch (error) {
      wrong.textContent = error.message;
      isSent = false;
      show();
    }
  };
  const parts = [
    element(
      "p",
      { class: "soft" },
      "The job is run again under faults, beside a twin that nothing disturbs. A certificate says whether it comes back as it was. Both are new jobs; this one is not touched.",
    ),
    choices.element,
    element(
      "div",
      { class: "fault", role: "group", "aria-label": "Drawn faults" },
      element("p", { class: "soft" }, "And some drawn at random; the same seed gives the same ones."),
      element("div", { class: "fault-fields" }, field("How many", drawn), field("Seed", seed)),
    ),
    element(
      "div",
      {},
      element("label", { class: "choice" }, together, "Run both at once"),
      element("label", { class: "choice" }, keep, "Keep both jobs after a PASS"),
    ),
    element(
      "details",
      {},
      element("summary", { class: "small" }, "How the log names steps and losses"),
      element(
        "div",
        { class: "fields" },
        field("Expression for a step", steps),
        field("Expression for a loss", losses),
      ),
      element("p", { class: "small soft" }, "Needed only where its own metric definitions and common forms find none."),
    ),
    element("section", { "aria-label": "What it costs" }, element("h3", {}, "What it costs"), told),
    element(
      "details",
      {},
      element("summary", { class: "small" }, "The same on the command line"),
      element(
        "div",
        { class: "command" },
        code,
        copyButton(() => code.textContent),
      ),
    ),
    field(`Type ${facts.name} to confirm`, typed),
    wrong,
  ];
  const dialog = openDialog(`Rehearse ${facts.name}`, parts, { submit, buttons: [closeButton("Cancel"), begin] });
  dialog.classList.add("dialog-wide");
  dialog.addEventListener("input", show);
  dialog.addEventListener("change", show);
  show();
}

/** Return when faults strike unless it is chosen: in the middle of what is known of the job. */
function usualMoment(facts, options) {
  const { progress } = facts;
  if (Number.isFinite(progress?.total) && /^step/.test(progress.unit ?? ""))
    return { unit: "step", value: Math.max(1, Math.round(SHARE * progress.total)) };
  const trained = (facts.ledger?.seconds?.productive ?? 0) / Math.max(1, options.hosts.length);
  const at = Math.round(SHARE * trained);
  return { unit: "s", value: isOver(facts.status) && at >= LEAST_AT_S ? at : DEFAULT_AT_S };
}

function costs(facts, options, wanted) {
  const hosts = options.hosts.length;
  const type = facts.hosts[0]?.instance_type;
  const each = `${count(hosts, "host")}${type ? ` of ${type}` : ""}`;
  const took = facts.ledger?.wall_s;
  const price = facts.ledger?.bill?.on_demand_usd;
  const isReclaimed = wanted.faults.some((fault) => fault.kind === "reclaim");
  return [
    wanted.together
      ? `Two new jobs of ${each} each, at the same time: ${count(2 * hosts, "host")} in all.`
      : `Two new jobs of ${each} each: a twin that nothing disturbs, then the rehearsal.`,
    facts.status === "Completed" && took
      ? `This job took ${duration(took)}: expect ${wanted.together ? "that" : "twice that"}, and what the faults cost.`
      : "No whole run of this job is known: each may take up to its time limit.",
    facts.status === "Completed" && price ? `At its on-demand price, about ${dollars(2 * price)} and more.` : "",
    isReclaimed && !options.is_spot ? "The rehearsal runs on spot capacity, so that it can be reclaimed." : "",
    options.has_checkpoints ? "" : "The request has no checkpoint place in S3: nothing is restored after a fault.",
    "Both write below clary-rehearsals/ in the job's output path, and nowhere else in S3.",
    wanted.keep ? "Both jobs are kept." : "After a PASS both jobs are deleted; the certificate stays.",
  ].filter(Boolean);
}

function commandOf(name, wanted) {
  const words = wanted.faults.map((fault) => `--${fault.kind}=${fault.text}`);
  if (wanted.random) words.push(`--random=${wanted.random}`);
  if (wanted.random && wanted.seed !== null) words.push(`--seed=${wanted.seed}`);
  if (wanted.disk_size) words.push(`--disk-size=${wanted.disk_size}`);
  if (wanted.step_regex) words.push(`--step-regex=${wanted.step_regex}`);
  if (wanted.loss_regex) words.push(`--loss-regex=${wanted.loss_regex}`);
  words.push(...["together", "keep"].filter((option) => wanted[option]).map((option) => `--${option}`));
  return ["clary", "rehearse", ...words, name].map(quoted).join(" ");
}

function quoted(word) {
  return PLAIN_WORD.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`;
}
