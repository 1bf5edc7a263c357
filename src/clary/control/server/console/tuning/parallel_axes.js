// Trials as lines over parallel axes: one for each tuned hyperparameter in its scaling, the last one for the objective.
// The better a trial, the stronger its colour. The pointer finds the nearest line; keys go from trial to trial.

import { element, refill, svg } from "../base/element.js";
import { panel } from "../base/places.js";
import { jobPath, link } from "../base/router.js";
import { count, number } from "../base/words.js";
import { axisOf, objectiveAxis, valueWords } from "./range_scales.js";

const HEIGHT = 300;
const TOP = 40;
const BOTTOM = 16;
const SIDE = 54; // room for names and ticks beside the outer axes
const LEAST_GAP = 96; // between axes; on a narrow screen the drawing scrolls in its panel
const LETTER = 7; // pixels, about
const REACH = 28; // pixels between pointer and line
const TITLE = "Trials over their hyperparameters";
const STEPS = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1 };

/** Make the drawing. Returns its element, `update(page)` and `point(number)`; `pointed(number)` is called back. */
export class ParallelAxes {
  #page = null;
  #drawn = []; // {trial, points: [[x, y], ...], path}, the worst first
  #width = 0;
  #text = "";
  #pointed = null; // number of a trial
  #over;

  constructor({ pointed, signal }) {
    this.pointed = pointed;
    this.#over = svg("path", { class: "trial trial-over", "aria-hidden": "true" });
    this.drawing = svg("svg", { class: "axes", role: "group", height: HEIGHT });
    this.place = element("div", { class: "axes-place" }, this.drawing);
    this.said = element("p", { class: "small trial-said" });
    this.definitions = element("select", { "aria-label": "Training job definition", class: "select-small" });
    this.ramp = element("span", { class: "small soft ramp" }, "worse", element("span", { class: "ramp-bar" }), "better");
    this.element = panel(TITLE, [this.place, this.said], { extra: [this.definitions, this.ramp] });
    this.definitions.addEventListener("change", () => this.#draw());
    this.drawing.addEventListener("pointermove", (event) => this.#near(event));
    this.drawing.addEventListener("pointerdown", (event) => this.#near(event));
    this.drawing.addEventListener("keydown", (event) => this.#pressed(event));
    this.drawing.addEventListener("focusin", (event) => this.#show(Number(event.target.dataset.number), true));
    const resized = new ResizeObserver(() => this.place.clientWidth !== this.#width && this.#draw());
    resized.observe(this.place);
    signal.addEventListener("abort", () => resized.disconnect());
  }

  update(page) {
    const names = page.definitions.map((one) => one.name);
    if (this.definitions.options.length !== names.length)
      refill(
        this.definitions,
        names.map((name) => element("option", { value: name }, name)),
      );
    this.definitions.hidden = names.length < 2;
    this.#page = page;
    const text = JSON.stringify(page.trials.map((trial) => [trial.number, trial.value, trial.ended_at]));
    if (text === this.#text) return;
    this.#text = text;
    this.#draw();
  }

  /** Show a trial; it is called by the table. */
  point(number) {
    this.#show(number, false);
  }

  #draw() {
    const page = this.#page;
    this.#width = this.place.clientWidth;
    if (!page || this.#width < 60) return;
    const definition = page.definitions.find((one) => one.name === this.definitions.value) ?? page.definitions[0];
    const trials = page.trials.filter((trial) => trial.definition === definition.name);
    const known = trials.filter((trial) => trial.value !== null);
    const axes = definition.ranges.map(axisOf);
    if (known.length)
      axes.push({
        ...objectiveAxis(
          page.objective.metric,
          known.map((trial) => trial.value),
        ),
        isObjective: true,
      });
    const width = Math.max(this.#width, 2 * SIDE + (axes.length - 1) * LEAST_GAP);
    const gap = axes.length > 1 ? (width - 2 * SIDE) / (axes.length - 1) : 0;
    const x = (index) => (axes.length > 1 ? SIDE + index * gap : width / 2);
    const y = (part) => HEIGHT - BOTTOM - part * (HEIGHT - BOTTOM - TOP);
    const focused = this.drawing.contains(document.activeElement) ? this.#pointed : null;
    this.#drawn = this.#ordered(trials).map(({ trial, share }) => this.#line(trial, share, axes, x, y));
    this.drawing.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    this.drawing.setAttribute("width", width);
    this.drawing.setAttribute("aria-label", `${TITLE}: ${count(trials.length, "trial")}; arrows go from trial to trial`);
    refill(
      this.drawing,
      axes.map((axis, index) => svg("line", { class: "axis", x1: x(index), x2: x(index), y1: TOP, y2: HEIGHT - BOTTOM })),
      this.#drawn.map((one) => one.path),
      this.#over,
      axes.map((axis, index) => labels(axis, x(index), y, gap || width)),
    );
    const numbers = this.#drawn.map((one) => one.trial.number);
    const wanted = numbers.includes(this.#pointed) ? this.#pointed : (page.best?.number ?? numbers.at(-1) ?? null);
    this.#show(wanted, false);
    if (focused !== null) this.#drawn.find((one) => one.trial.number === focused)?.path.focus({ preventScroll: true });
  }

  /** Return trials with their share of goodness by rank: those without an objective, the worst, ..., the best. */
  #ordered(trials) {
    const sign = this.#page.objective.is_maximized ? 1 : -1;
    const known = trials.filter((trial) => trial.value !== null).sort((one, other) => sign * (one.value - other.value));
    const rest = trials.filter((trial) => trial.value === null);
    return [
      ...rest.map((trial) => ({ trial, share: null })),
      ...known.map((trial, rank) => ({ trial, share: known.length > 1 ? (100 * rank) / (known.length - 1) : 100 })),
    ];
  }

  #line(trial, share, axes, x, y) {
    const places = axes.map((axis) => axis.place(axis.isObjective ? trial.value : trial.parameters[axis.name]));
    const points = places.flatMap((part, index) => (part === null ? [] : [[x(index), y(part)]]));
    const path = svg("path", {
      class: `trial${share === null ? " trial-unknown" : ""}`,
      d: points.map(([left, top], index) => `${index ? "L" : "M"}${left.toFixed(1)} ${top.toFixed(1)}`).join(""),
      role: "img",
      tabindex: "-1",
      "aria-label": this.#words(trial),
      data: { number: String(trial.number) },
      style: { "--share": String(share ?? 0) },
    });
    return { trial, points, path };
  }

  #words(trial) {
    const value = trial.value === null ? "no objective" : `${this.#page.objective.metric} ${number(trial.value)}`;
    const parameters = Object.entries(trial.parameters).map(([name, text]) => `${name} ${valueWords(text)}`);
    return `Trial ${trial.number}: ${[value, ...parameters].join(", ")}`;
  }

  #near(event) {
    const box = this.drawing.getBoundingClientRect();
    const [left, top] = [event.clientX - box.left, event.clientY - box.top];
    let found = null;
    let distance = REACH;
    for (const one of this.#drawn) {
      const at = heightAt(one.points, left);
      if (at !== null && Math.abs(at - top) <= distance) [found, distance] = [one, Math.abs(at - top)];
    }
    if (found) this.#show(found.trial.number, true);
  }

  #pressed(event) {
    const best = [...this.#drawn].reverse(); // the best first
    const index = best.findIndex((one) => one.trial.number === this.#pointed);
    const last = best.length - 1;
    const wanted = { Home: 0, End: last }[event.key] ?? (STEPS[event.key] ? index + STEPS[event.key] : null);
    if (wanted === null || !best.length) return;
    event.preventDefault();
    best[Math.max(0, Math.min(last, wanted))].path.focus({ preventScroll: true });
  }

  #show(number, tellsOthers) {
    const one = this.#drawn.find((other) => other.trial.number === number);
    if (!one) return;
    this.#pointed = number;
    for (const other of this.#drawn) other.path.setAttribute("tabindex", other === one ? "0" : "-1");
    this.#over.setAttribute("d", one.path.getAttribute("d"));
    const words = this.#words(one.trial);
    refill(
      this.said,
      link(jobPath(one.trial.job), { title: one.trial.job }, words.slice(0, words.indexOf(":"))),
      element("span", { class: "number" }, words.slice(words.indexOf(":"))),
    );
    if (tellsOthers) this.pointed(number);
  }
}

function labels(axis, x, y, gap) {
  const most = Math.max(4, Math.floor(gap / LETTER) - 1);
  return [
    svg(
      "text",
      { class: `axis-name${axis.isObjective ? " axis-objective" : ""}`, x, y: 16, "text-anchor": "middle" },
      svg("title", {}, axis.name),
      cut(axis.name, most),
    ),
    axis.ticks.map(([part, text]) =>
      svg("text", { class: "axis-tick", x: x + 6, y: y(part) + 4 }, svg("title", {}, text), cut(text, most - 1)),
    ),
  ];
}

function cut(text, most) {
  return text.length > most ? `${text.slice(0, most - 1)}…` : text;
}

function heightAt(points, left) {
  for (let index = 1; index < points.length; index++) {
    const [[fromX, fromY], [toX, toY]] = [points[index - 1], points[index]];
    if (left >= fromX - 4 && left <= toX + 4) return fromY + ((left - fromX) / (toX - fromX || 1)) * (toY - fromY);
  }
  return points.length === 1 && Math.abs(points[0][0] - left) < 20 ? points[0][1] : null;
}
