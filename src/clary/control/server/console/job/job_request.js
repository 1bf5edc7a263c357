// The request as it was sent; what looks secret comes masked from the service.

import { get, ofJob } from "../base/api.js";
import { element, refill } from "../base/element.js";
import { copyButton, failure, panel, skeleton } from "../base/places.js";

const TOKENS = /("(?:\\.|[^"\\])*")(\s*:)?|\b(?:true|false|null)\b|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?/g;

/** Make the tab. */
export function requestTab({ name, signal }) {
  const place = element("div", {}, skeleton(260));
  const load = async () => {
    try {
      const { request } = await get(ofJob(name, "request"), {}, signal);
      const text = JSON.stringify(request, null, 2);
      refill(
        place,
        panel("CreateTrainingJob, as it was sent", element("pre", { class: "json" }, coloured(text)), {
          extra: copyButton(() => text),
        }),
      );
    } catch (error) {
      if (!signal.aborted) refill(place, failure(error, load));
    }
  };
  load();
  return { element: place };
}

/** Return nodes of a JSON text with its keys, texts and numbers told apart. */
function coloured(text) {
  const nodes = [];
  let last = 0;
  for (const found of text.matchAll(TOKENS)) {
    nodes.push(text.slice(last, found.index));
    const kind = found[2] !== undefined ? "json-key" : found[1] !== undefined ? "json-text" : "json-number";
    nodes.push(element("span", { class: kind }, found[1] ?? found[0]), found[2] ?? "");
    last = found.index + found[0].length;
  }
  return [...nodes, text.slice(last)];
}
