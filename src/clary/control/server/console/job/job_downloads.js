// What a job has made, to be saved: files in S3 by links that are asked for when they are wanted, and the whole log.

import { get, ofJob } from "../base/api.js";
import { element, refill } from "../base/element.js";
import { icon } from "../base/icons.js";
import { copyButton, empty, panel, toast } from "../base/places.js";
import { quantity } from "../base/words.js";
import { plainText } from "./ansi_text.js";

const WORDS = { model: "Model", output: "Output", code: "Code", checkpoint: "Checkpoints" };
const MOST_LOG_BYTES = 500e6; // that a browser is asked to hold; `clary cp` has no bound

/** Make the panel; links are asked for when it is opened, since they expire. */
export function downloads(facts) {
  const place = element("div", { class: "downloads" });
  const open = element(
    "button",
    { class: "button", type: "button", on: { click: () => show(facts, place) } },
    icon("down"),
    "Show files",
  );
  place.append(open);
  const log = element(
    "button",
    { class: "button", type: "button", on: { click: (event) => saveLog(facts.name, event.currentTarget) } },
    icon("down"),
    "Whole log",
  );
  const command = `clary cp ${facts.name}:${facts.model_artifacts_uri ? "model" : "logs"} .`;
  return panel(
    "Downloads",
    element("div", { class: "downloads-list" }, [
      place,
      element("div", {}, log),
      element("div", { class: "command" }, element("code", {}, command), copyButton(() => command)),
    ]),
  );
}

async function show(facts, place) {
  try {
    const page = await get(ofJob(facts.name, "downloads"));
    if (!page.files.length && page.is_counted)
      return refill(place, empty("list", "No files", "The job has written no model, no output and no checkpoints."));
    const rows = page.files.map((file) =>
      element(
        "li",
        {},
        element("span", { class: "faint" }, WORDS[file.what] ?? file.what),
        element("a", { href: file.url, download: "", class: "cut" }, file.name),
        element("span", { class: "number faint" }, quantity(file.size_bytes, "B")),
      ),
    );
    const total = `${page.is_counted ? "" : "more than "}${page.num_files.toLocaleString("en-GB")}`;
    const more =
      (page.num_files > rows.length || !page.is_counted) &&
      element("p", { class: "faint" }, `These are ${rows.length} of ${total} files; clary cp copies all.`);
    refill(place, element("ul", { class: "files" }, rows), more);
  } catch (error) {
    toast(error.message, "warning");
  }
  return undefined;
}

/** Read the log page by page and hand it over as one file. */
async function saveLog(name, button) {
  button.disabled = true;
  const parts = [];
  let bytes = 0;
  let tokens = {};
  try {
    for (;;) {
      const after = Object.fromEntries(Object.entries(tokens).map(([stream, token]) => [`after.${stream}`, token]));
      const page = await get(ofJob(name, "logs"), after);
      const text = page.lines.map((line) => `${line.host} | ${plainText(line.text)}\n`).join("");
      parts.push(text);
      bytes += text.length;
      button.title = `${quantity(bytes, "B")} read`;
      if (page.sure_until_ms === null) break;
      if (bytes > MOST_LOG_BYTES) throw new Error(`The log is long: clary cp ${name}:logs . fetches all of it`);
      ({ tokens } = page);
    }
    const url = URL.createObjectURL(new Blob(parts, { type: "text/plain" }));
    const saved = element("a", { href: url, download: `${name}.log` });
    document.body.append(saved);
    saved.click();
    saved.remove();
    setTimeout(() => URL.revokeObjectURL(url), 60_000);
  } catch (error) {
    toast(error.message, "warning");
  }
  button.disabled = false;
}
