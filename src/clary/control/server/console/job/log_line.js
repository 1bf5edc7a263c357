// One line of a log: when, who, what; colours of a terminal are kept, all else that it would obey is taken out, and what
// was searched for is marked.

import { element } from "../base/element.js";
import { instant, moment, newDate } from "../base/words.js";
import { colouredPieces, plainText } from "./ansi_text.js";
import { behindBar } from "./progress_folding.js";

const BAD = /\b(?:traceback|fatal|critical|[a-z]*error|[a-z]*exception)\b/i;
const WARN = /\bwarn(?:ing)?\b/i;
const COLOURS = 8;

/** Make a line; `isNarrow` leaves the host out where there is one alone. */
export function logLine(line, { search, hosts }) {
  const text = shownText(line.text);
  const kind = BAD.test(text) ? " log-bad" : WARN.test(text) ? " log-warn" : "";
  const who = [hosts.length > 1 ? line.host : "", line.rank === null ? "" : `rank ${line.rank}`]
    .filter(Boolean)
    .join(" ");
  const colour = (line.rank ?? Math.max(0, hosts.indexOf(line.host))) % COLOURS;
  return element(
    "div",
    { class: `log-line${kind}` },
    element("time", { title: moment(line.at_ms) }, instant(line.at_ms)),
    who && element("span", { class: `who line-${colour}` }, who),
    element("span", { class: "text" }, search ? marked(text, search) : coloured(lastState(line.text))),
  );
}

/** Make the date above a line; null if the line before is of the same day, and for today's if there is none before. */
export function dayLine(line, before) {
  const date = newDate(line.at_ms, before?.at_ms);
  return date ? element("div", { class: "log-day" }, date) : null;
}

/** Return a line's text without escapes; of a line that was written over again and again, its last state. */
export function shownText(text) {
  return plainText(lastState(text));
}

function lastState(text) {
  return text.replace(/\r+$/, "").split("\r").at(-1);
}

/** Make the pieces of a line; a bar before what a program has printed becomes one that can be hidden. */
function coloured(text) {
  const end = behindBar(plainText(text));
  const bar = [];
  const rest = [];
  let at = 0;
  for (const { text: part, kind } of colouredPieces(text)) {
    const cut = Math.max(0, Math.min(part.length, end - at));
    if (cut) bar.push(piece(part.slice(0, cut), kind));
    if (cut < part.length) rest.push(piece(part.slice(cut), kind));
    at += part.length;
  }
  return [bar.length > 0 && element("span", { class: "bar-part" }, bar), rest];
}

function piece(text, kind) {
  return kind ? element("span", { class: kind }, text) : text;
}

function marked(text, search) {
  const parts = [];
  const low = text.toLowerCase();
  const wanted = search.toLowerCase();
  let from = 0;
  for (let at = low.indexOf(wanted); at >= 0; at = low.indexOf(wanted, from)) {
    parts.push(text.slice(from, at), element("mark", {}, text.slice(at, at + wanted.length)));
    from = at + wanted.length;
  }
  return [...parts, text.slice(from)];
}
