// What each rank did at each moment of a profile, as strips on one axis.

import { element, svg } from "../base/element.js";
import { tipped } from "../base/places.js";
import { scale, ticks } from "../charts/scales.js";

const PARTS = {
  c: ["Compute", "compute_share"],
  x: ["Exposed communication", "exposed_communication_share"],
  d: ["Data wait", "data_wait_share"],
  ".": ["Rest", "rest_share"],
};
const MOST_STRIPS = 64;
const MOST_BOUNDS = 40; // steps that are marked
const TICKS = 6;

/** Make the strips; of ranks that an older service has looked at, their shares alone. */
export function rankStrips(ranks) {
  const shown = ranks.slice(0, MOST_STRIPS);
  const isPlaced = shown.every((rank) => rank.strip && Number.isFinite(rank.begins_ms));
  const whole = Math.max(...shown.map((rank) => (isPlaced ? rank.begins_ms : 0) + rank.window_ms));
  return element(
    "div",
    { class: "lanes strips" },
    element(
      "ul",
      { class: "parts-legend" },
      Object.entries(PARTS).map(([letter, [word]]) =>
        element("li", {}, element("span", { class: `swatch strip-${nameOf(letter)}` }), word),
      ),
    ),
    shown.map((rank) => lane(rank, isPlaced, whole)),
    isPlaced && axis(whole),
    ranks.length > shown.length && element("p", { class: "faint small" }, `and ${ranks.length - shown.length} more ranks`),
  );
}

function lane(rank, isPlaced, whole) {
  const words = Object.values(PARTS).map(([word, share]) => `${word} ${(100 * rank[share]).toFixed(1)} %`);
  const bar = element(
    "div",
    { class: "lane-bar", role: "img", "aria-label": `Rank ${rank.rank}: ${words.join(", ")}` },
    isPlaced ? strip(rank, whole) : shares(rank),
  );
  return element(
    "div",
    { class: "lane" },
    element("span", { class: "small soft cut" }, `Rank ${rank.rank}`),
    tipped(bar, [`Rank ${rank.rank} on ${rank.host}`, ...words]),
  );
}

function strip(rank, whole) {
  const cells = rank.strip.length;
  const runs = [];
  for (let index = 0; index < cells; index++) {
    const letter = Object.hasOwn(PARTS, rank.strip[index]) ? rank.strip[index] : ".";
    if (runs.at(-1)?.letter === letter) runs.at(-1).length += 1;
    else runs.push({ letter, begin: index, length: 1 });
  }
  const bounds = (rank.bounds_ms ?? []).length <= MOST_BOUNDS ? (rank.bounds_ms ?? []).slice(1, -1) : [];
  return svg(
    "svg",
    {
      viewBox: `0 0 ${cells} 10`,
      preserveAspectRatio: "none",
      "aria-hidden": "true",
      style: { left: `${(100 * rank.begins_ms) / whole}%`, width: `${(100 * rank.window_ms) / whole}%` },
    },
    runs.map((run) =>
      svg("rect", { class: `strip-${nameOf(run.letter)}`, x: run.begin, y: 0, width: run.length, height: 10 }),
    ),
    bounds.map((bound) => {
      const x = (cells * bound) / rank.window_ms;
      return svg("line", { class: "strip-bound", x1: x, x2: x, y1: 0, y2: 10 });
    }),
  );
}

function shares(rank) {
  let left = 0;
  return Object.entries(PARTS).map(([letter, [, share]]) => {
    const made = element("div", {
      class: `stretch strip-${nameOf(letter)}`,
      style: { left: `${100 * left}%`, width: `${100 * rank[share]}%` },
    });
    left += rank[share];
    return made;
  });
}

function axis(whole) {
  const place = scale([0, whole], [0, 100]).place;
  const marks = ticks([0, whole], TICKS).map((at) => {
    const edge = place(at) < 2 ? " first" : place(at) > 95 ? " last" : "";
    return element("span", { class: `tick${edge}`, style: { left: `${place(at)}%` } }, `${at} ms`);
  });
  return element(
    "div",
    { class: "lane axis", "aria-hidden": "true" },
    element("span", {}),
    element("div", { class: "lane-axis small faint number" }, marks),
  );
}

function nameOf(letter) {
  return { c: "compute", x: "exposed", d: "data" }[letter] ?? "rest";
}
