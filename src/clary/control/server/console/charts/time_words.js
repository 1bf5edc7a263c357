// Moments on a chart's axis, as short as the span allows.

import { duration, moment } from "../base/words.js";

const make = (parts) => new Intl.DateTimeFormat("en-GB", parts);
const SECONDS = make({ hour: "2-digit", minute: "2-digit", second: "2-digit" });
const MINUTES = make({ hour: "2-digit", minute: "2-digit" });
const DAYS = make({ day: "numeric", month: "short", hour: "2-digit", minute: "2-digit" });

/** Return `14:03`, `14:03:22` or `21 Nov, 14:03`; exactly, a moment with its date; counted from `zero`, a duration. */
export function timeWords(at, [since, until], zero, isExact = false) {
  if (zero !== 0 || until < 1e10) return duration((at - zero) / 1000);
  if (isExact) return moment(at);
  if (until - since > 36 * 3_600_000) return DAYS.format(at);
  return (until - since < 8 * 60_000 ? SECONDS : MINUTES).format(at);
}
