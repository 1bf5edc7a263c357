// How much each hyperparameter decides whether a trial is among the best.

import { element } from "../base/element.js";
import { empty, panel } from "../base/places.js";

/** Make the panel. */
export function importanceBars({ importance, importance_why: why }) {
  const body = importance
    ? element("ul", { class: "bars" }, Object.entries(importance).map(bar))
    : empty("chart", "Not known yet", why);
  return panel("Importance", body);
}

function bar([name, share]) {
  const percent = Math.round(share * 100);
  return element(
    "li",
    {},
    element("span", { class: "bar-name", title: name }, name),
    element("span", { class: "number" }, `${percent} %`),
    element(
      "div",
      {
        class: "progress",
        role: "meter",
        "aria-label": `Importance of ${name}`,
        "aria-valuenow": percent,
        "aria-valuemin": 0,
        "aria-valuemax": 100,
      },
      element("div", { style: { width: `${share * 100}%` } }),
    ),
  );
}
