// The time that the charts of a page show together: its span, what was zoomed to, where the pointer is.

import { timeTicks } from "./scales.js";
import { timeWords } from "./time_words.js";

export class SharedTime extends EventTarget {
  #whole = [0, 1];
  #zoomed = null;
  at = null;
  leastZoom = 200; // milliseconds

  /** `zero`: what times count from; 0 shows them as times of day. */
  constructor({ zero = 0 } = {}) {
    super();
    this.zero = zero;
  }

  get isZoomed() {
    return this.#zoomed !== null;
  }

  span() {
    return this.#zoomed ?? this.#whole;
  }

  setWhole(since, until) {
    this.#whole = until > since ? [since, until] : [since, since + 1000];
  }

  /** Return about `amount` places of ticks. */
  ticks(amount) {
    return timeTicks(this.span(), amount, this.zero);
  }

  /** Return what stands at a place. */
  words(at, isExact = false) {
    return timeWords(at, this.span(), this.zero, isExact);
  }

  zoom(span) {
    this.#zoomed = span && span[1] - span[0] > this.leastZoom ? span : null;
    this.dispatchEvent(new Event("zoom"));
  }

  point(at, dragged = null) {
    this.at = at;
    this.dispatchEvent(new CustomEvent("point", { detail: dragged }));
  }
}
