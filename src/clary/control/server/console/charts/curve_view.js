// How curves that programs report are seen: over time or over steps, as they are or smoothed.

import { element } from "../base/element.js";

export const TIME = "time";
export const STEPS = "step";
const AT = 0;
const VALUE = 1;
const STEP = 2;
const MOST_SMOOTHING = 0.99;

/** Make the view that a query asks for: `axis=step`, `smooth=0.6`. */
export function viewOf({ axis, smooth }) {
  const weight = Number(smooth);
  return {
    axis: axis === STEPS ? STEPS : TIME,
    smoothing: weight > 0 ? Math.min(MOST_SMOOTHING, weight) : 0,
  };
}

/** Return what of a query says the view; what is usual is left out. */
export function queryOf(view) {
  return { axis: view.axis === STEPS ? STEPS : "", smooth: view.smoothing ? String(view.smoothing) : "" };
}

/** Make the controls; `changed` is called after the view was changed. */
export function viewControls(view, changed) {
  const axis = element(
    "select",
    { "aria-label": "Horizontal axis" },
    element("option", { value: TIME, selected: view.axis === TIME }, "Over time"),
    element("option", { value: STEPS, selected: view.axis === STEPS }, "Over steps"),
  );
  axis.addEventListener("change", () => {
    view.axis = axis.value;
    changed();
  });
  const shown = element("output", { class: "number small" }, words(view.smoothing));
  const smoothing = element("input", {
    type: "range",
    min: "0",
    max: String(MOST_SMOOTHING),
    step: "0.01",
    value: String(view.smoothing),
    "aria-label": "Smoothing",
  });
  smoothing.addEventListener("input", () => {
    view.smoothing = Number(smoothing.value);
    shown.textContent = words(view.smoothing);
    changed();
  });
  const title = element("span", { class: "small soft" }, "Smoothing");
  return [axis, element("label", { class: "smoothing" }, title, smoothing, shown)];
}

/** Whether any point of these curves says its step. */
export function hasSteps(curves) {
  return curves.some((points) => points.some((point) => point[STEP] !== null && point[STEP] !== undefined));
}

/** Return points `[step, value]` in order of steps; of a step that was done again after a restart, the last. */
export function bySteps(points) {
  const found = new Map();
  for (const point of points) if (Number.isFinite(point[STEP])) found.set(point[STEP], point[VALUE]);
  return [...found].sort(([one], [other]) => one - other);
}

/**
 * Return points whose values are means that forget, as TensorBoard smooths; 0 leaves them as they are.
 * The first values count for no more than others; a value that is not a number is kept, and the mean goes on behind it.
 */
export function smoothed(points, weight) {
  if (!weight) return points;
  let sum = 0;
  let count = 0;
  return points.map((point) => {
    const value = point[VALUE];
    if (!Number.isFinite(value)) return point;
    sum = sum * weight + (1 - weight) * value;
    count += 1;
    return [point[AT], sum / (1 - weight ** count)];
  });
}

/** Return a line as it is seen: with its values as they are behind those that are smoothed. */
export function viewed(line, smoothing) {
  return smoothing ? { ...line, points: smoothed(line.points, smoothing), raw: line.points } : line;
}

function words(smoothing) {
  return smoothing ? smoothing.toFixed(2) : "off";
}
