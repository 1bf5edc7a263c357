// What every host did at each moment, over all attempts: a lane a host, one axis.

import { element } from "../base/element.js";
import { tipped } from "../base/places.js";
import { duration, moment } from "../base/words.js";
import { timeTicks } from "../charts/scales.js";
import { partColour, partWord } from "./time_parts.js";

const MOST_LANES = 64;
const TICKS = 6;
const LEAST_SHARE = 0.0015; // of the axis; what is shorter is widened to it, so that it can be seen

/** Make the lanes. */
export function lanes(facts) {
  const hosts = Object.entries(facts.lanes).filter(([, lane]) => lane.length);
  const begin = Math.min(...hosts.map(([, lane]) => Date.parse(lane[0].start)));
  const end = Math.max(begin + 1, ...hosts.map(([, lane]) => Date.parse(lane.at(-1).end)));
  const share = (at) => (at - begin) / (end - begin);
  const shown = hosts.slice(0, MOST_LANES);
  const parts = [...new Set(shown.flatMap(([, lane]) => lane.map((stretch) => stretch.part)))];
  return element(
    "div",
    { class: "lanes" },
    element(
      "ul",
      { class: "parts-legend" },
      parts.map((part) =>
        element(
          "li",
          {},
          element("span", { class: "swatch", style: { background: partColour(part) } }),
          partWord(part),
        ),
      ),
    ),
    shown.map(([host, lane]) =>
      element(
        "div",
        { class: "lane" },
        element("span", { class: "small soft cut" }, host),
        element(
          "div",
          { class: "lane-bar", role: "img", "aria-label": `${host}: ${laneWords(lane)}` },
          lane.map((stretch) => bar(host, stretch, share)),
          attemptEnds(facts, share),
        ),
      ),
    ),
    axis(begin, end, share),
    hosts.length > MOST_LANES && element("p", { class: "faint small" }, `and ${hosts.length - MOST_LANES} more hosts`),
  );
}

function bar(host, stretch, share) {
  const [start, end] = [Date.parse(stretch.start), Date.parse(stretch.end)];
  const width = Math.max(LEAST_SHARE, share(end) - share(start));
  const made = element("div", {
    class: "stretch",
    style: { left: `${100 * share(start)}%`, width: `${100 * width}%`, background: partColour(stretch.part) },
  });
  return tipped(made, [
    `${host}: ${partWord(stretch.part)}`,
    `${moment(start)} to ${moment(end)}, ${duration((end - start) / 1000)}`,
  ]);
}

function attemptEnds(facts, share) {
  return facts.past_attempts.map((attempt) => {
    const made = element("div", {
      class: "attempt-end",
      style: { left: `${100 * share(Date.parse(attempt.ended_at))}%` },
    });
    return tipped(made, [`Attempt ${attempt.number} was ${attempt.kind}`, attempt.reason]);
  });
}

function axis(begin, end, share) {
  const marks = timeTicks([begin, end], TICKS, begin).map((at) => {
    const edge = share(at) < 0.02 ? " first" : share(at) > 0.95 ? " last" : "";
    return element(
      "span",
      { class: `tick${edge}`, style: { left: `${100 * share(at)}%` } },
      duration((at - begin) / 1000),
    );
  });
  return element(
    "div",
    { class: "lane axis", "aria-hidden": "true" },
    element("span", {}),
    element("div", { class: "lane-axis small faint number" }, marks),
  );
}

function laneWords(lane) {
  return lane
    .map(
      (stretch) =>
        `${partWord(stretch.part)} ${duration((Date.parse(stretch.end) - Date.parse(stretch.start)) / 1000)}`,
    )
    .join(", ");
}
