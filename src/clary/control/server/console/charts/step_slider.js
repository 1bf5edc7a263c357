// Chooses one of the steps at which a program wrote something: with the pointer, or with arrows, Home and End.

import { element } from "../base/element.js";

/**
 * Make a slider.
 * Args: title: what has the steps; changed(item): told whenever another item is to be shown.
 * It stays at the newest item while more come, until somebody moves it away from there.
 */
export class StepSlider {
  #items = [];
  #index = -1;

  constructor({ title, changed }) {
    this.changed = changed;
    this.input = element("input", {
      type: "range",
      min: "0",
      max: "0",
      step: "1",
      "aria-label": `Step of ${title}`,
      on: { input: () => this.choose(Number(this.input.value)) },
    });
    this.words = element("span", { class: "small number" });
    this.element = element("div", { class: "step-slider" }, this.input, this.words);
  }

  get item() {
    return this.#items[this.#index];
  }

  get index() {
    return this.#index;
  }

  /** Show these items, {id, step}, in order of their steps. */
  setItems(items) {
    const shown = this.item;
    const follows = this.#index === this.#items.length - 1;
    this.#items = items;
    this.input.max = String(Math.max(0, items.length - 1));
    this.input.disabled = items.length < 2;
    this.#index = -1;
    this.choose(follows || !shown ? items.length - 1 : placeOf(items, shown));
  }

  /** Show the item at a place. */
  choose(index) {
    const isOther = index !== this.#index;
    this.#index = Math.max(0, Math.min(this.#items.length - 1, index));
    this.input.value = String(this.#index);
    if (!isOther || !this.item) return;
    const place = `${this.#index + 1} of ${this.#items.length}`;
    const step = stepWords(this.item.step);
    this.words.textContent = `${step} (${place})`;
    this.input.setAttribute("aria-valuetext", `${step}, ${place}`);
    this.changed(this.item);
  }
}

/** Return `step 1,200`, or that none was said. */
export function stepWords(step) {
  return step === null || step === undefined ? "no step" : `step ${step.toLocaleString("en-GB")}`;
}

/** Put items in order: by step, then as they came. */
export function bySteps(items) {
  return [...items].sort((one, other) => (one.step ?? 0) - (other.step ?? 0) || one.id - other.id);
}

/** Return the place of an item, or, if it has been thinned out since, of the one before it. */
function placeOf(items, shown) {
  const same = items.findIndex((item) => item.id === shown.id);
  if (same >= 0) return same;
  return Math.max(0, items.findLastIndex((item) => (item.step ?? 0) <= (shown.step ?? 0)));
}
