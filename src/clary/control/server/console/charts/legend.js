// The lines of a chart by name, each with its value; a click hides one, a double click the others.

import { element, refill } from "../base/element.js";
import { nameParts } from "../base/places.js";

/** Make a legend. Returns its element, `setLines(lines, hidden)` and `setValues(values by key)`. */
export function makeLegend({ toggle }) {
  const place = element("div", { class: "legend", role: "group", "aria-label": "Lines" });
  let cells = new Map();
  let known = "";
  const setLines = (lines, hidden) => {
    const text = JSON.stringify([lines.map((line) => [line.key, line.label, line.colour]), [...hidden]]);
    if (text === known) return;
    known = text;
    cells = new Map();
    refill(
      place,
      lines.map((line) => {
        const value = element("span", { class: "number value" });
        cells.set(line.key, value);
        const on = { click: () => toggle(line.key, false), dblclick: () => toggle(line.key, true) };
        return element(
          "button",
          {
            type: "button",
            "aria-pressed": String(!hidden.has(line.key)),
            title: `${line.label}: click hides, double click shows it alone`,
            on,
          },
          element("span", { class: `swatch line-${line.colour}`, "aria-hidden": "true" }),
          element("span", { class: "name" }, nameParts(line.label)),
          value,
        );
      }),
    );
  };
  const setValues = (values) => {
    for (const [key, cell] of cells) cell.textContent = values.get(key) ?? "";
  };
  return { element: place, setLines, setValues };
}
