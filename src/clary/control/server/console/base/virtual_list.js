// A list of rows of one height, of which only those near the window are in the document.

import { element } from "./element.js";

const BEYOND = 12; // rows above and below the window

/**
 * Make a list whose rows come from `row(index)`, which returns {key, make} or null for one that is not there yet.
 * The element grows with `setLength`; `refresh` draws again what has changed.
 */
export class VirtualList {
  #rows = new Map(); // key -> {element, text}
  #length = 0;
  #row;
  #height;
  #seen;
  #frame = 0;

  constructor({ row, height, seen, signal }) {
    this.#row = row;
    this.#height = height;
    this.#seen = seen;
    this.element = element("div", { class: "rows", role: "rowgroup" });
    const draw = () => {
      cancelAnimationFrame(this.#frame);
      this.#frame = requestAnimationFrame(() => this.refresh());
    };
    addEventListener("scroll", draw, { passive: true, signal });
    addEventListener("resize", draw, { passive: true, signal });
  }

  setLength(length) {
    this.#length = length;
    this.refresh();
  }

  /** Bring a row into the window. */
  reveal(index) {
    const top = this.element.getBoundingClientRect().top + index * this.#height();
    const room = 120; // the page's head covers what is above
    if (top < room) scrollBy(0, top - room);
    else if (top + this.#height() > innerHeight - 20) scrollBy(0, top + this.#height() - innerHeight + 20);
    this.refresh();
  }

  refresh() {
    const height = this.#height();
    this.element.style.height = `${this.#length * height}px`;
    const top = this.element.getBoundingClientRect().top;
    const first = Math.max(0, Math.floor(-top / height) - BEYOND);
    const last = Math.min(this.#length, Math.ceil((innerHeight - top) / height) + BEYOND);
    const wanted = new Map();
    for (let index = first; index < last; index++) {
      const row = this.#row(index);
      wanted.set(row.key, true);
      this.#place(row, index * height);
    }
    for (const [key, { element: old }] of this.#rows) {
      if (wanted.has(key)) continue;
      old.remove();
      this.#rows.delete(key);
    }
    this.#order(wanted.keys());
    this.#seen?.(first, last);
  }

  /** Have rows in the document in the order in which they are seen: screen readers and the tabulator follow it. */
  #order(keys) {
    let next = this.element.firstElementChild;
    for (const key of keys) {
      const row = this.#rows.get(key).element;
      if (row === next) next = next.nextElementSibling;
      else this.element.insertBefore(row, next);
    }
  }

  #place({ key, text, make }, top) {
    let kept = this.#rows.get(key);
    if (!kept || kept.text !== text) {
      const made = make();
      const focused = kept?.element.contains(document.activeElement) ? document.activeElement.dataset.part : null;
      if (kept) kept.element.replaceWith(made);
      else this.element.append(made);
      if (focused) made.querySelector(`[data-part="${focused}"]`)?.focus({ preventScroll: true });
      kept = { element: made, text };
      this.#rows.set(key, kept);
    }
    kept.element.style.transform = `translateY(${top}px)`;
  }
}
