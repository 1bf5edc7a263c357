// Lines over time: values under the pointer, zoom by dragging, a logarithmic scale, lines that can be hidden.

import { element, refill, svg } from "../base/element.js";
import { quantity } from "../base/words.js";
import { makeLegend } from "./legend.js";
import { logTicks, nearest, roomFor, scale, ticks } from "./scales.js";

const HEIGHT = 190;
const LEFT = 58;
const RIGHT = 14;
const TOP = 8;
const BOTTOM = 24;
const LEAST_DRAG = 6; // pixels; less is a click
const MOST_GAP = 6; // usual distances between points; more is drawn as a gap

let numCharts = 0;

/**
 * Make a chart.
 * Args: title; unit; shared: a `SharedTime`, so that charts of one page zoom and point together.
 * Lines are {key, label, colour, isWide, points: [[at, value], ...], raw} in order of time; `at` in milliseconds, or
 * steps; a wide one is seen below one that covers it; `raw` are points drawn faintly behind those that were smoothed.
 * `isDots` draws the points alone, `isWhole` a line that no pause between points cuts.
 */
export class LineChart {
  #lines = [];
  #hidden = new Set();
  #isLog = false;
  #x = null;
  #drag = null;
  #cursor = null;
  #width = 0; // of the last drawing

  constructor({ title, unit = "", shared, signal }) {
    Object.assign(this, { title, unit, shared, clip: `clip-${++numCharts}` });
    this.drawing = svg("svg", {
      class: "plot",
      role: "img",
      height: HEIGHT,
      tabindex: "0",
      "aria-label": `${title}: chart`,
    });
    this.legend = makeLegend({ toggle: (key, alone) => this.#toggle(key, alone) });
    this.at = element("span", { class: "small faint number at" });
    this.log = element(
      "button",
      {
        class: "button button-small",
        type: "button",
        "aria-pressed": "false",
        title: "Logarithmic scale",
        on: { click: () => this.#setLog() },
      },
      "log",
    );
    this.reset = element(
      "button",
      { class: "button button-small", type: "button", hidden: true, on: { click: () => shared.zoom(null) } },
      "Reset zoom",
    );
    this.element = element(
      "figure",
      { class: "panel chart", "aria-label": title, role: "group" },
      element("header", {}, element("h2", {}, title), this.at, this.reset, this.log),
      this.drawing,
      this.legend.element,
    );
    this.#listen(signal);
    const resized = new ResizeObserver(() => this.#room() !== this.#width && this.draw());
    resized.observe(this.element);
    signal?.addEventListener("abort", () => resized.disconnect());
  }

  setLines(lines) {
    this.#lines = lines;
    this.legend.setLines(lines, this.#hidden);
    this.draw();
  }

  draw() {
    const width = this.#room();
    this.#width = width; // of one that is hidden too: it is drawn when it is shown
    if (width < 120 || !this.#lines.length) return;
    const shown = this.#lines.filter((line) => !this.#hidden.has(line.key));
    const span = this.shared.span();
    const inside = shown.map((line) => ({
      ...line,
      points: within(line.points, span),
      raw: within(line.raw ?? [], span),
    }));
    const room = roomFor(
      inside.flatMap((line) => [...line.points, ...line.raw].map((point) => point[1])),
      { isLog: this.#isLog, unit: this.unit },
    );
    this.#x = scale(span, [LEFT, width - RIGHT]);
    const y = scale(room, [HEIGHT - BOTTOM, TOP], { isLog: this.#isLog });
    this.y = y;
    this.drawing.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    this.drawing.setAttribute("width", width);
    this.drawing.setAttribute(
      "aria-label",
      `${this.title}: chart of ${shown.length} ${shown.length === 1 ? "line" : "lines"}`,
    );
    this.#cursor = svg("g", { class: "cursor" });
    refill(
      this.drawing,
      this.#grid(y, this.#isLog ? logTicks(room) : ticks(room, 4), width),
      this.#times(width),
      svg(
        "clipPath",
        { id: this.clip },
        svg("rect", { x: LEFT, y: 0, width: width - LEFT - RIGHT, height: HEIGHT - BOTTOM + 2 }),
      ),
      inside.map((line) => line.raw.length > 0 && this.#line(line.raw, `line-${line.colour} line-raw`)),
      inside.map((line) =>
        line.isDots
          ? this.#dots(line)
          : this.#line(line.points, `line-${line.colour}${line.isWide ? " line-wide" : ""}`, line.isWhole),
      ),
      inside
        .filter((line) => line.points.length === 1 && !line.isDots)
        .map((line) =>
          svg("circle", {
            class: `dot line-${line.colour}`,
            r: 3,
            cx: this.#x.place(line.points[0][0]),
            cy: y.place(line.points[0][1]),
          }),
        ),
      this.#cursor,
    );
    this.reset.hidden = !this.shared.isZoomed;
    this.#point(this.shared.at);
  }

  #line(points, kind, isWhole = false) {
    const drawn = path(points, this.#x, this.y, { isLog: this.#isLog, isWhole });
    return svg("path", { "clip-path": `url(#${this.clip})`, class: `line ${kind}`, d: drawn });
  }

  #dots(line) {
    const shown = line.points.filter(([, value]) => Number.isFinite(value) && !(this.#isLog && value <= 0));
    return svg(
      "g",
      { "clip-path": `url(#${this.clip})`, class: `dots line-${line.colour}` },
      shown.map(([at, value]) => svg("circle", { class: "dot", r: 3, cx: this.#x.place(at), cy: this.y.place(value) })),
    );
  }

  #room() {
    return this.element.clientWidth - 2;
  }

  #grid(y, values, width) {
    return values.map((value) => [
      svg("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: y.place(value), y2: y.place(value) }),
      svg("text", { x: LEFT - 8, y: y.place(value) + 4, "text-anchor": "end" }, quantity(value, this.unit)),
    ]);
  }

  #times(width) {
    const amount = Math.max(2, Math.floor(width / 110));
    return this.shared.ticks(amount).map((at) =>
      svg("text", { x: this.#x.place(at), y: HEIGHT - 6, "text-anchor": "middle" }, this.shared.words(at)),
    );
  }

  #listen(signal) {
    const place = (event) => event.clientX - this.drawing.getBoundingClientRect().left;
    this.drawing.addEventListener("pointerdown", (event) => {
      if (event.button || event.pointerType === "touch" || !this.#x) return;
      this.#drag = place(event);
      this.drawing.setPointerCapture(event.pointerId);
    });
    this.drawing.addEventListener(
      "pointermove",
      (event) => this.#x && this.shared.point(this.#x.value(place(event)), this.#dragged(place(event))),
    );
    this.drawing.addEventListener("pointerleave", () => this.#drag === null && this.shared.point(null));
    this.drawing.addEventListener("pointerup", (event) => {
      const dragged = this.#dragged(place(event));
      this.#drag = null;
      if (dragged) this.shared.zoom(dragged);
    });
    this.drawing.addEventListener("dblclick", () => this.shared.zoom(null));
    this.drawing.addEventListener("keydown", (event) => this.#pressed(event));
    this.shared.addEventListener("zoom", () => this.draw(), { signal });
    this.shared.addEventListener("point", (event) => this.#point(this.shared.at, event.detail), { signal });
  }

  #dragged(place) {
    if (this.#drag === null || Math.abs(place - this.#drag) < LEAST_DRAG) return null;
    return [Math.min(this.#drag, place), Math.max(this.#drag, place)].map((edge) => this.#x.value(edge));
  }

  #pressed(event) {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const line = this.#lines.find((one) => !this.#hidden.has(one.key) && one.points.length);
    if (event.key === "Escape" && (this.shared.isZoomed || this.shared.at !== null)) {
      this.shared.zoom(null);
      this.shared.point(null);
      event.stopPropagation();
    }
    if (!step || !line) return;
    event.preventDefault();
    const places = [...new Set(line.points.map(([at]) => at))].map((at) => [at]); // a stair has two points at one place
    const index = this.shared.at === null ? places.length : nearest(places, this.shared.at) + step;
    this.shared.point(places[Math.max(0, Math.min(places.length - 1, index))][0]);
  }

  #point(at, dragged = null) {
    if (!this.#cursor || !this.#x) return;
    const shown = this.#lines.filter((line) => !this.#hidden.has(line.key) && line.points.length);
    const last = new Map(shown.map((line) => [line.key, quantity(line.points.at(-1)[1], this.unit)]));
    const found = at === null ? [] : shown.map((line) => [line, line.points[nearest(line.points, at)]]);
    const closest = found
      .map(([, point]) => point[0])
      .sort((one, other) => Math.abs(one - at) - Math.abs(other - at))[0];
    const span = this.shared.span();
    const values = new Map(found.map(([line, point]) => [line.key, quantity(point[1], this.unit)]));
    this.legend.setValues(at === null ? last : values);
    this.at.textContent = closest === undefined ? "" : this.shared.words(closest, true);
    const isInside = closest >= span[0] && closest <= span[1];
    refill(
      this.#cursor,
      isInside && svg("line", { x1: this.#x.place(closest), x2: this.#x.place(closest), y1: TOP, y2: HEIGHT - BOTTOM }),
      found
        .filter(
          ([, point]) =>
            isInside &&
            Number.isFinite(point[1]) &&
            point[0] >= span[0] &&
            point[0] <= span[1] &&
            !(this.#isLog && point[1] <= 0),
        )
        .map(([line, point]) =>
          svg("circle", {
            class: `dot line-${line.colour}`,
            r: 3.5,
            cx: this.#x.place(point[0]),
            cy: this.y.place(point[1]),
          }),
        ),
      dragged &&
        svg("rect", {
          class: "zoom",
          x: this.#x.place(dragged[0]),
          y: TOP,
          width: this.#x.place(dragged[1]) - this.#x.place(dragged[0]),
          height: HEIGHT - TOP - BOTTOM,
        }),
    );
  }

  #toggle(key, alone) {
    const keys = this.#lines.map((line) => line.key);
    const isAlone = keys.every((other) => (other === key) !== this.#hidden.has(other));
    if (alone) this.#hidden = isAlone ? new Set() : new Set(keys.filter((other) => other !== key));
    else if (!this.#hidden.delete(key)) this.#hidden.add(key);
    this.setLines(this.#lines);
  }

  #setLog() {
    this.#isLog = !this.#isLog;
    this.log.setAttribute("aria-pressed", String(this.#isLog));
    this.draw();
  }
}

function within(points, [since, until]) {
  if (!points.length) return points;
  let first = 0;
  let last = points.length;
  while (first < last && points[first][0] < since) first++;
  while (last > first && points[last - 1][0] > until) last--;
  // One point beyond each edge, so that the line goes on to it.
  return points.slice(Math.max(0, first - 1), last + 1);
}

function path(points, x, y, { isLog, isWhole }) {
  const gaps = points
    .slice(1)
    .map((point, index) => point[0] - points[index][0])
    .sort((one, other) => one - other);
  const longest = gaps.length > 4 && !isWhole ? Math.max(5000, gaps[gaps.length >> 1] * MOST_GAP) : Infinity;
  let text = "";
  let before = null;
  for (const [at, value] of points) {
    if (!Number.isFinite(value) || (isLog && value <= 0)) {
      before = null;
      continue;
    }
    text += `${before === null || at - before > longest ? "M" : "L"}${x.place(at).toFixed(1)} ${y.place(value).toFixed(1)}`;
    before = at;
  }
  return text;
}
