// Why a job failed: the reason, what to do about it, and the last words of the process that failed first.

import { element } from "../base/element.js";
import { callout, panel } from "../base/places.js";
import { plainText } from "./ansi_text.js";

/** Make the parts; `why` is the page of that name, null until it has come. */
export function failureParts(facts, why) {
  const { cause } = facts;
  const rank = cause.rank === null ? "" : `, rank ${cause.rank}`;
  const advice = cause.is_retryable
    ? "Trying it again can help: nothing of the job has to change."
    : "Trying it again will not help as it stands: change what the reason names, then start the job anew.";
  const words = [why?.hint || facts.hint, advice, cause.verdict && `Verdict: ${facts.category}.`];
  const title = `Why it failed: ${cause.host ? `${cause.host}${rank}` : "the service"}`;
  return [
    callout("bad", "close", title, facts.failure_reason, words.filter(Boolean).join(" ")),
    why?.traceback.length > 0 && panel("Where in the program", lines(why.traceback, "Traceback")),
    why?.last_lines.length > 0 &&
      panel(`Last lines of ${why.lines_of}`, lines(why.last_lines, "Last lines")),
  ].filter(Boolean);
}

function lines(texts, label) {
  return element(
    "div",
    { class: "said-lines mono", role: "group", tabindex: "0", "aria-label": label },
    texts.map((text) => element("div", {}, plainText(text) || " ")),
  );
}
