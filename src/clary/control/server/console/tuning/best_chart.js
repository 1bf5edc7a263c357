// The best objective so far, over the trials or over time, with the objective of every trial as a dot.

import { element, refill } from "../base/element.js";
import { query, setQuery } from "../base/router.js";
import { serviceNow } from "../base/service_time.js";
import { LineChart } from "../charts/line_chart.js";
import { SharedSteps } from "../charts/shared_steps.js";
import { SharedTime } from "../charts/shared_time.js";

const TIME = "time";
const TRIALS = "trials";
const TITLE = "Best objective so far";
const HALF = 0.5; // of a trial, so that the dots at the edges are whole

/** Trials in the order of their ends as places of a chart. */
class SharedTrials extends SharedSteps {
  words(at, isExact = false) {
    return isExact ? `after ${at === 1 ? "1 trial" : `${at} trials`}` : at.toLocaleString("en-GB");
  }
}

/** Make the chart. Returns its element and `update(page)`. */
export function bestChart({ signal, beginMs }) {
  const shared = { [TRIALS]: new SharedTrials(), [TIME]: new SharedTime({ zero: beginMs }) };
  const charts = Object.fromEntries(
    Object.entries(shared).map(([key, places]) => [key, new LineChart({ title: TITLE, shared: places, signal })]),
  );
  let axis = query().axis === TIME ? TIME : TRIALS;
  let page = null;
  const place = element("div", {});
  for (const [key, chart] of Object.entries(charts)) chart.log.before(axisSwitch(key));

  function axisSwitch(key) {
    const select = element(
      "select",
      { "aria-label": "Horizontal axis", class: "select-small" },
      element("option", { value: TRIALS, selected: key === TRIALS }, "Over trials"),
      element("option", { value: TIME, selected: key === TIME }, "Over time"),
    );
    select.addEventListener("change", () => {
      axis = select.value;
      select.value = key; // this one stays with its chart, which is hidden
      setQuery({ axis: axis === TIME ? TIME : "" });
      show();
      charts[axis].element.querySelector("select").focus();
    });
    return select;
  }

  function show() {
    const chart = charts[axis];
    if (!place.contains(chart.element)) refill(place, chart.element);
    const [best, trials] = lines(page, axis);
    const ends = best.points.map(([at]) => at);
    if (axis === TIME) shared[axis].setWhole(beginMs, Math.max(beginMs + 1000, ...ends));
    else shared[axis].setWhole(1 - HALF, Math.max(2, ...ends) + HALF);
    chart.setLines([trials, best]);
  }

  return {
    element: place,
    update: (now) => {
      page = now;
      show();
    },
  };
}

function lines(page, axis) {
  const values = new Map(page.trials.map((trial) => [trial.number, trial.value]));
  const at = ([, endedMs], index) => (axis === TIME ? endedMs : index + 1);
  const dots = page.best_so_far.map((row, index) => [at(row, index), values.get(row[0])]);
  const steps = [];
  page.best_so_far.forEach((row, index) => {
    if (steps.length) steps.push([at(row, index), steps.at(-1)[1]]); // a stair: the best stays until a better one ends
    steps.push([at(row, index), row[2]]);
  });
  if (axis === TIME && steps.length) {
    const nowMs = page.ended_at ? Date.parse(page.ended_at) : serviceNow();
    steps.push([Math.max(nowMs, steps.at(-1)[0]), steps.at(-1)[1]]);
  }
  return [
    { key: "best", label: "Best so far", colour: 0, isWhole: true, points: steps },
    { key: "trials", label: "Each trial", colour: 1, isDots: true, points: dots },
  ];
}
