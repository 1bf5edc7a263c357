// A curve as small as a word: its course, no values.

import { svg } from "../base/element.js";

const WIDTH = 120;
const HEIGHT = 30;
const ROOM = 2; // so that the line's width is not cut

/** Draw points, which are [at, value, ...] in order of time; null for fewer than two. */
export function sparkline(points) {
  const known = points.filter((point) => Number.isFinite(point[1]));
  if (known.length < 2) return null;
  const values = known.map((point) => point[1]);
  const [least, greatest] = [Math.min(...values), Math.max(...values)];
  const [begin, end] = [known[0][0], known.at(-1)[0]];
  const x = (at) => (WIDTH * (at - begin)) / (end - begin || 1);
  const y = (value) =>
    greatest === least ? HEIGHT / 2 : ROOM + (HEIGHT - 2 * ROOM) * (1 - (value - least) / (greatest - least));
  const line = known
    .map(([at, value], index) => `${index ? "L" : "M"}${x(at).toFixed(1)} ${y(value).toFixed(1)}`)
    .join("");
  return svg(
    "svg",
    {
      class: "sparkline line-0",
      viewBox: `0 0 ${WIDTH} ${HEIGHT}`,
      preserveAspectRatio: "none",
      "aria-hidden": "true",
    },
    svg("path", { class: "under", d: `${line}L${WIDTH} ${HEIGHT}L0 ${HEIGHT}Z` }),
    svg("path", { class: "course", d: line, "vector-effect": "non-scaling-stroke" }),
  );
}
