// A resume certificate: the verdict with its reason, what was lost, samples, both losses over one another, the faults.

import { element } from "../base/element.js";
import { callout, panel } from "../base/places.js";
import { count, duration, number } from "../base/words.js";
import { LineChart } from "../charts/line_chart.js";
import { SharedSteps } from "../charts/shared_steps.js";
import { sentence } from "./rehearsal_words.js";

const KINDS = { PASS: ["good", "check"], FAIL: ["bad", "close"], INCONCLUSIVE: ["warn", "warning"] };
const TITLES = {
  PASS: "PASS: the job comes back as it was",
  FAIL: "FAIL: the job does not come back as it was",
  INCONCLUSIVE: "INCONCLUSIVE: nothing is proved",
};
const UNDONE_COLOUR = 3;

/** Make the parts of a certificate. */
export function certificateView(certificate, signal) {
  const [kind, drawing] = KINDS[certificate.verdict] ?? KINDS.INCONCLUSIVE;
  const advice = certificate.advice && sentence(`what to do: ${certificate.advice}`);
  return [
    callout(kind, drawing, TITLES[certificate.verdict] ?? certificate.verdict, sentence(certificate.reason), advice),
    panel("In short", inShort(certificate)),
    curves(certificate.curves, signal),
    panel("Faults", table(["Fault", "Struck", "Note"], certificate.strikes.map(strike))),
    certificate.interruptions.length > 0 &&
      panel(
        "Interruptions",
        table(
          ["Attempt", "Last step", "Resumed at", "Lost", "Files restored", "Why"],
          certificate.interruptions.map(interruption),
        ),
      ),
    metrics(certificate.metrics ?? {}),
  ];
}

/** Make a table of texts; it scrolls sideways where it is too wide. */
export function table(head, rows) {
  return element(
    "div",
    { class: "scroll", tabindex: "0" },
    element(
      "table",
      { class: "plain-table" },
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
        rows.map((cells) =>
          element(
            "tr",
            {},
            cells.map((cell) => element("td", { class: "number" }, cell)),
          ),
        ),
      ),
    ),
  );
}

function inShort(certificate) {
  const parts = [
    ["Steps lost", number(certificate.steps_lost), ""],
    ["Time lost", timeLost(certificate), certificate.redone_s ? `${duration(certificate.redone_s)} done again` : ""],
    ["Samples", ...samples(certificate.samples)],
    ["Losses", ...losses(certificate.losses)],
  ];
  return element(
    "dl",
    { class: "tiles tiles-wide" },
    parts.map(([term, value, words]) =>
      element(
        "div",
        {},
        element("dt", {}, term),
        element("dd", { class: "number" }, value),
        words && element("dd", { class: "soft said" }, words),
      ),
    ),
  );
}

function timeLost({ seconds_lost: seconds }) {
  if (seconds === null || seconds === undefined) return "–";
  return seconds < 0 ? `${duration(-seconds)} less` : duration(seconds);
}

function samples(check) {
  if (!check.is_known) return ["Not known", check.words];
  if (!check.num_twice && !check.num_never)
    return ["All as the twin's", `${number(check.num_compared)} drawn, each as often as by the twin; ${check.words}`];
  const twice = check.examples_twice.slice(0, 5).join(", ");
  const never = check.examples_never.slice(0, 5).join(", ");
  return [
    `${number(check.num_twice + check.num_never)} differ`,
    [
      check.num_twice && `${number(check.num_twice)} once too often (${twice} …)`,
      check.num_never && `${number(check.num_never)} too seldom (${never} …)`,
      check.words,
    ]
      .filter(Boolean)
      .join("; "),
  ];
}

function losses(check) {
  if (!check.num_compared) return ["Not found", "Nothing in the log was read as a loss."];
  if (check.num_equal === check.num_compared)
    return ["All as the twin's", `${number(check.num_compared)} compared, equal as printed`];
  const parts = check.parts_at
    ? `; they part at step ${check.parts_at}: ${check.there}, the twin's ${check.twin_there}`
    : "";
  const noise = check.noise ? `; ${number(check.noise)} apart before any fault` : "";
  return [
    `${number(check.num_equal)} of ${number(check.num_compared)} equal`,
    `the others within ${number(check.largest)}${noise}${parts}`,
  ];
}

function curves(found, signal) {
  if (!found?.twin?.length) return null;
  const shared = new SharedSteps();
  const chart = new LineChart({ title: "Loss of twin and rehearsal", shared, signal });
  const lines = [
    { key: "twin", label: "twin", colour: 0, isWide: true, points: found.twin },
    { key: "rehearsal", label: "rehearsal", colour: 1, points: found.rehearsal },
    ...found.undone.map((points, index) => ({
      key: `undone ${index}`,
      label: found.undone.length > 1 ? `done again ${index + 1}` : "done again",
      colour: UNDONE_COLOUR + index,
      points,
    })),
  ].filter((line) => line.points.length);
  const places = lines.flatMap((line) => line.points.map((point) => point[0]));
  const first = Math.min(...places);
  shared.setWhole(first, Math.max(first + 1, ...places));
  chart.setLines(lines);
  return chart.element;
}

function strike(fault) {
  const struck = fault.at_s === null ? "never" : `${duration(fault.at_s)} after training began`;
  return [fault.words, struck, element("span", { class: "said" }, fault.note || "–")];
}

function interruption(item) {
  return [
    number(item.attempt),
    item.last_step || "–",
    item.first_step || "–",
    item.lost_steps === null ? "not known" : count(item.lost_steps, "step"),
    number(item.restored_files),
    element("span", { class: "said" }, item.why),
  ];
}

function metrics(values) {
  const rows = Object.entries(values).map(([name, [twin, rehearsal]]) => [name, number(twin), number(rehearsal)]);
  return rows.length > 0 && panel("Last metrics", table(["Metric", "Twin", "Rehearsal"], rows));
}
