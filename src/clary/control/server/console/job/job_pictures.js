// Histograms and images that a job's program wrote for TensorBoard, each tag with a slider over its steps.

import { address, get, ofJob } from "../base/api.js";
import { element } from "../base/element.js";
import { repeat } from "../base/repeating.js";
import { count, quantity } from "../base/words.js";
import { HeatMap } from "../charts/heat_map.js";
import { bySteps, StepSlider, stepWords } from "../charts/step_slider.js";

const EVERY_MS = 5000;
const AT_FIRST = 8; // tags of a kind that are shown; a large model has thousands
const MORE = 24;
const SMALL_PX = 200; // pictures that are narrower are enlarged, dot by dot

/** Make the part of a page that holds them; empty while there are none. */
export function picturesPart({ name, facts, signal }) {
  const shelves = [
    new Shelf("histogram", { title: "Histograms", name, signal, make: (tag) => new HeatMap({ title: tag, signal }) }),
    new Shelf("image", { title: "Images", name, signal, make: (tag) => new ImageFrame({ title: tag, job: name }) }),
  ];

  async function load() {
    const isLast = facts().is_over; // asked for before the tags: those of a job that is over are all there
    const { tags } = await get(ofJob(name, "tensorboard"), {}, signal);
    for (const shelf of shelves) await shelf.setTags(tags);
    return isLast ? false : undefined;
  }

  repeat(load, { everyMs: EVERY_MS, signal, failed: () => {} });
  return { element: element("div", {}, shelves.map((shelf) => shelf.element)) };
}

/** The tags of one kind, a few of them at first. */
class Shelf {
  #tags = [];
  #shown = new Map(); // tag -> {picture, numSeen}
  #most = AT_FIRST;

  constructor(kind, { title, name, signal, make }) {
    Object.assign(this, { kind, name, signal, make });
    this.amount = element("span", { class: "small soft" });
    this.place = element("div", { class: "charts" });
    this.more = element(
      "button",
      { class: "button more", type: "button", hidden: true, on: { click: () => this.#showMore() } },
      "Show more",
    );
    const head = element("div", { class: "charts-head" }, element("h2", {}, title), this.amount);
    this.element = element("section", { "aria-label": title, hidden: true }, head, this.place, this.more);
  }

  async setTags(tags) {
    this.#tags = tags
      .filter((one) => one.kind === this.kind)
      .sort((one, other) => one.tag.localeCompare(other.tag, "en", { numeric: true }));
    this.element.hidden = !this.#tags.length;
    this.amount.textContent = count(this.#tags.length, "tag");
    this.more.hidden = this.#tags.length <= this.#most;
    for (const one of this.#tags.slice(0, this.#most)) await this.#refresh(one);
  }

  async #refresh({ tag, num_seen }) {
    if (this.#shown.get(tag)?.numSeen === num_seen) return;
    const query = { kind: this.kind, tag };
    const { pictures } = await get(ofJob(this.name, "tensorboard"), query, this.signal);
    const known = this.#shown.get(tag);
    const picture = known?.picture ?? this.make(tag);
    this.#shown.set(tag, { picture, numSeen: num_seen });
    if (!known) this.#put(tag, picture);
    picture.setItems(pictures);
  }

  /** Put a picture where its tag stands among the others; tags come while a program runs. */
  #put(tag, picture) {
    const tags = this.#tags.map((one) => one.tag);
    const behind = tags.slice(tags.indexOf(tag) + 1).find((other) => this.#shown.has(other));
    this.place.insertBefore(picture.element, behind === undefined ? null : this.#shown.get(behind).picture.element);
  }

  async #showMore() {
    this.#most += MORE;
    try {
      await this.setTags(this.#tags);
    } catch {
      this.#most -= MORE; // the button stays, to be pressed again
      this.more.hidden = false;
    }
  }
}

/** The images of one tag, one at a time. */
class ImageFrame {
  constructor({ title, job }) {
    Object.assign(this, { title, job });
    this.image = element("img", {
      decoding: "async",
      on: { load: () => this.#loaded(), error: () => this.#say("This picture could not be shown.") },
    });
    this.open = element("a", { target: "_blank", rel: "noopener", class: "image" }, this.image);
    this.words = element("p", { class: "soft small said", hidden: true });
    this.size = element("p", { class: "small soft" });
    this.slider = new StepSlider({ title, changed: (item) => this.#show(item) });
    this.element = element(
      "figure",
      { class: "panel chart picture", role: "group", "aria-label": title },
      element("header", {}, element("h2", { title }, title)),
      element("div", { class: "frame" }, this.open, this.words),
      element("div", { class: "under" }, this.slider.element, this.size),
    );
  }

  setItems(items) {
    this.slider.setItems(bySteps(items));
  }

  #show(item) {
    this.size.textContent = quantity(item.size_bytes, "B");
    if (!item.is_kept)
      return this.#say(
        `The picture of ${stepWords(item.step)} is too large to be kept, or no PNG, JPEG or GIF. It stands in ${item.file}.`,
      );
    const from = `${address(ofJob(this.job, "tensorboard"))}?image=${item.id}`;
    this.words.hidden = true;
    this.open.hidden = false;
    this.open.href = from;
    this.image.alt = `${this.title} at ${stepWords(item.step)}`;
    if (this.image.getAttribute("src") !== from) this.image.src = from;
    else if (this.image.complete) this.#loaded();
  }

  #loaded() {
    const { naturalWidth, naturalHeight } = this.image;
    this.image.classList.toggle("small-image", naturalWidth < SMALL_PX);
    this.size.textContent = `${naturalWidth} × ${naturalHeight}, ${quantity(this.slider.item.size_bytes, "B")}`;
  }

  #say(text) {
    this.open.hidden = true;
    this.words.hidden = false;
    this.words.textContent = text;
  }
}
