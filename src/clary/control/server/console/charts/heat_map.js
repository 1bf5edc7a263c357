// Histograms over steps: the darker, the more values lie there; at the side the histogram of the chosen step.

import { element, refill, svg } from "../base/element.js";
import { number } from "../base/words.js";
import { gridOf, LEVELS, ROWS, runsOf, summaryOf } from "./densities.js";
import { scale, ticks } from "./scales.js";
import { bySteps, StepSlider, stepWords } from "./step_slider.js";

const HEIGHT = 190;
const LEFT = 58;
const RIGHT = 10;
const TOP = 8;
const BOTTOM = 24;
const SIDE = 58; // pixels of the histogram at the side
const GAP = 8;
const LEAST_BAR = 1;

/** Make a heat map of one tag; `setItems` gives it histograms, {id, step, buckets}. */
export class HeatMap {
  #items = [];
  #grid = null;
  #edges = [];
  #x = null;
  #y = null;

  constructor({ title, signal }) {
    this.title = title;
    this.drawing = svg("svg", { class: "plot", role: "img", height: HEIGHT, "aria-label": `${title}: histograms` });
    this.chosen = svg("g", { class: "chosen" });
    this.said = element("p", { class: "small soft said" });
    this.slider = new StepSlider({ title, changed: () => this.#show() });
    this.element = element(
      "figure",
      { class: "panel chart", role: "group", "aria-label": title },
      element("header", {}, element("h2", { title }, title)),
      this.drawing,
      element("div", { class: "under" }, this.slider.element, this.said),
    );
    const choose = (event) => {
      if (!this.#x || (event.type === "pointermove" && !(event.buttons & 1))) return;
      const at = this.#x.value(event.clientX - this.drawing.getBoundingClientRect().left);
      const behind = this.#edges.findIndex((edge) => edge > at);
      this.slider.choose(behind < 0 ? this.#items.length - 1 : behind - 1);
    };
    this.drawing.addEventListener("pointerdown", choose);
    this.drawing.addEventListener("pointermove", choose);
    const resized = new ResizeObserver(() => this.draw());
    resized.observe(this.element);
    signal?.addEventListener("abort", () => resized.disconnect());
  }

  setItems(items) {
    this.#items = bySteps(items);
    this.#grid = gridOf(this.#items);
    this.#x = null; // the columns that were drawn are those of other steps
    this.slider.setItems(this.#items);
    this.draw();
  }

  draw() {
    const width = this.element.clientWidth - 2;
    if (width < 200 || !this.#items.length) return;
    this.drawing.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    this.drawing.setAttribute("width", width);
    const last = stepWords(this.#items.at(-1).step);
    const words = `${this.title}: ${this.#items.length} histograms, from ${stepWords(this.#items[0].step)} to ${last}`;
    this.drawing.setAttribute("aria-label", words);
    if (!this.#grid) return refill(this.drawing, svg("text", { x: LEFT, y: HEIGHT / 2 }, "no values"));
    const steps = this.#items.map((item) => item.step);
    const areSteps = steps.every((step, index) => step !== null && (!index || step > steps[index - 1]));
    this.#edges = edgesOf(areSteps ? steps : steps.map((_, index) => index));
    this.side = width - RIGHT - SIDE;
    this.#x = scale([this.#edges[0], this.#edges.at(-1)], [LEFT, this.side - GAP]);
    this.#y = scale(this.#grid.range, [HEIGHT - BOTTOM, TOP]);
    refill(this.drawing, this.#values(width), this.#cells(), areSteps && this.#steps(steps), this.chosen);
    this.#show();
  }

  #cells() {
    const paths = new Array(LEVELS + 1).fill("");
    const row = scale([0, ROWS], [HEIGHT - BOTTOM, TOP]);
    this.#grid.columns.forEach((column, index) => {
      const [from, to] = [this.#edges[index], this.#edges[index + 1]].map((edge) => this.#x.place(edge).toFixed(1));
      for (const [level, first, behind] of runsOf(column, this.#grid.peak))
        paths[level] += `M${from} ${row.place(first).toFixed(1)}H${to}V${row.place(behind).toFixed(1)}H${from}Z`;
    });
    return paths.map((d, level) => d && svg("path", { class: `heat heat-${level}`, d })).filter(Boolean);
  }

  #values(width) {
    return ticks(this.#grid.range, 4).map((value) => [
      svg("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: this.#y.place(value), y2: this.#y.place(value) }),
      svg("text", { x: LEFT - 8, y: this.#y.place(value) + 4, "text-anchor": "end" }, number(value)),
    ]);
  }

  #steps(steps) {
    const room = this.side - GAP - LEFT;
    const shown = steps.length > 1 ? ticks([steps[0], steps.at(-1)], Math.max(1, Math.floor(room / 90))) : steps;
    return shown
      .filter((step) => Number.isInteger(step))
      .map((step) => svg("text", { x: this.#x.place(step), y: HEIGHT - 6, "text-anchor": "middle" }, number(step)));
  }

  /** Mark the chosen step, and draw its histogram at the side. */
  #show() {
    const { item, index } = this.slider;
    if (!item) return;
    const found = summaryOf(item.buckets);
    this.said.textContent = found
      ? `${number(found.count)} values from ${number(found.least)} to ${number(found.greatest)}, middle ${number(found.middle)}`
      : "no values";
    if (!this.#grid || !this.#x) return;
    const column = this.#grid.columns[index];
    const most = Math.max(...column) || 1;
    const row = scale([0, ROWS], [HEIGHT - BOTTOM, TOP]);
    const [from, to] = [this.#edges[index], this.#edges[index + 1]].map((edge) => this.#x.place(edge));
    const bars = column.map((share, place) => {
      const length = share > 0 ? Math.max(LEAST_BAR, (share / most) * SIDE) : 0;
      return length ? `M${this.side} ${row.place(place)}H${this.side + length}V${row.place(place + 1)}H${this.side}Z` : "";
    });
    refill(
      this.chosen,
      svg("rect", { class: "frame", x: from - 1, y: TOP, width: to - from + 2, height: HEIGHT - TOP - BOTTOM, rx: 1.5 }),
      svg("path", { class: "bars", d: bars.join("") }),
    );
  }
}

/** Return the edges of columns around these places: halfway to their neighbours. */
function edgesOf(places) {
  if (places.length < 2) return [places[0] - 0.5, places[0] + 0.5];
  const inner = places.slice(1).map((place, index) => (place + places[index]) / 2);
  return [2 * places[0] - inner[0], ...inner, 2 * places.at(-1) - inner.at(-1)];
}
