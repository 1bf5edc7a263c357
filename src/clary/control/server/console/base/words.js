// Numbers, times and names as people read them.

import { serviceNow } from "./service_time.js";

const BYTES = ["B", "kB", "MB", "GB", "TB", "PB"];
const ENDINGS = { _percent: "%", _bytes_s: "B/s", _bytes: "B", _ms: "ms", _w: "W", _c: "°C", _s: "s" };
const ALSO_BYTES = ["memory", "disk_used"]; // measured in bytes and in percent of what there is
const LONG_BEGIN = 10; // letters that names have in common; fewer are shown
const DAY_MS = 86_400_000;
const MS_PER_S = 1000;
const day = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short" });
const dayOfYear = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", year: "numeric" });
const numericDay = new Intl.DateTimeFormat("en-CA", { year: "numeric", month: "2-digit", day: "2-digit" });
const clock = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const short = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit" });

/** Return `42 ms`, `4.2 s`, `42 s`, `12 min 4 s`, `3 h 12 min` or `2 d 4 h`. */
export function duration(seconds) {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return "–";
  const whole = Math.round(Math.max(0, seconds));
  if (seconds <= 0) return "0 s";
  if (seconds < 0.05) return `${digits(seconds * MS_PER_S)} ms`;
  if (seconds < 9.95) return `${seconds.toFixed(1)} s`;
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return two(Math.floor(whole / 60), "min", whole % 60, "s");
  if (whole < 86_400) return two(Math.floor(whole / 3600), "h", Math.floor((whole % 3600) / 60), "min");
  return two(Math.floor(whole / 86_400), "d", Math.floor((whole % 86_400) / 3600), "h");
}

/** Return a time of day, with the date if it is not today's, and the year if it is not this one. */
export function moment(at, { seconds = true } = {}) {
  if (at === null || at === undefined) return "–";
  const time = new Date(at);
  const text = (seconds ? clock : short).format(time);
  const date = newDate(at);
  return date ? `${date}, ${text}` : text;
}

/** Return `21 Nov`, with the year if it is not this one; empty if it is the day of `before`, which is now if not given. */
export function newDate(at, before = serviceNow()) {
  const time = new Date(at);
  if (time.toDateString() === new Date(before).toDateString()) return "";
  return (time.getFullYear() === new Date(serviceNow()).getFullYear() ? day : dayOfYear).format(time);
}

/** Return a time of day with milliseconds. */
export function instant(at) {
  return `${clock.format(new Date(at))}.${String(new Date(at).getMilliseconds()).padStart(3, "0")}`;
}

/** Return date and time of day with milliseconds, for texts that are kept: `2025-11-21 14:03:22.123`. */
export function stamp(at) {
  return `${numericDay.format(new Date(at))} ${instant(at)}`;
}

/** Return `just now`, `4 min ago`, or the date. */
export function ago(at) {
  const passed = serviceNow() - new Date(at).getTime();
  if (passed < 5000) return "just now";
  return passed < 7 * DAY_MS
    ? `${duration(passed / 1000)
        .split(" ")
        .slice(0, 2)
        .join(" ")} ago`
    : moment(at, { seconds: false });
}

/** Return a number with about four digits that mean something. */
export function number(value) {
  if (value === null || value === undefined) return "–";
  if (!Number.isFinite(value)) return String(value);
  const size = Math.abs(value);
  if (value === 0) return "0";
  if (size >= 1e7 || size < 1e-4) return value.toExponential(2);
  if (Number.isInteger(value)) return value.toLocaleString("en-GB");
  return String(Number(value.toPrecision(4)));
}

/** Return a number with its unit: `182 %`, `3.1 GB`, `41 MB/s`; less than a second in milliseconds: `4.2 ms`. */
export function quantity(value, unit) {
  if (value === null || value === undefined) return "–";
  if (unit === "s" && value !== 0 && Math.abs(value) < 1) return `${digits(value * MS_PER_S)} ms`;
  if (unit !== "B" && unit !== "B/s") return `${unit ? digits(value) : number(value)} ${unit}`.trim();
  let step = 0;
  for (; Math.abs(value) >= 1000 && step < BYTES.length - 1; step++) value /= 1000;
  return `${digits(value)} ${BYTES[step]}${unit.slice(1)}`;
}

/** Return the unit that a series' name ends with; empty for a number without. */
export function unitOf(name) {
  const ending = Object.keys(ENDINGS).find((known) => name.endsWith(known));
  return ending ? ENDINGS[ending] : "";
}

/** Return `network received` of `rank-3/network_received_bytes_s`. */
export function quantityWords(name) {
  let text = name.slice(name.indexOf("/") + 1);
  const ending = Object.keys(ENDINGS).find((known) => text.endsWith(known) && text.length > known.length);
  if (ending) {
    text = text.slice(0, -ending.length);
    if (ending === "_percent" && ALSO_BYTES.includes(text)) text += " share";
  }
  return text.replaceAll("_", " ");
}

/** Compare names of metrics: losses come first, which people look at first. */
export function lossFirst(one, other) {
  const isLoss = (name) => /loss/i.test(name);
  return isLoss(other) - isLoss(one) || one.localeCompare(other, "en", { numeric: true });
}

/** Return names without what all of them begin with, if that is long: `…003-9f3a` of `sweep-of-a-model-003-9f3a`. */
export function endings(names) {
  if (names.length < 2) return names;
  let same = 0;
  while (names.every((name) => same < name.length && name[same] === names[0][same])) same++;
  const at = Math.max(...["-", "_", "."].map((sign) => names[0].lastIndexOf(sign, same - 1))) + 1;
  return at < LONG_BEGIN ? names : names.map((name) => `…${name.slice(at)}`);
}

/** Return `place 3 of 205, starts in about 12 min`; empty for a job that does not wait. */
export function queueWords(queue) {
  if (!queue) return "";
  if (queue.place === null) {
    return `${queue.basis === "scheduler" ? "Waits for the scheduler" : "Passed over for now"}, start unknown`;
  }
  const place = `Place ${queue.place} of ${queue.num_waiting}`;
  if (queue.start_in_s === null) return `${place}, start unknown`;
  if (queue.start_in_s < 1) return `${place}, starts at once`;
  const about = queue.basis === "past jobs" ? "in about" : "within";
  return `${place}, starts ${about} ${duration(queue.start_in_s)}`;
}

/** Return `1 host` or `3 hosts`. */
export function count(amount, noun) {
  return `${amount.toLocaleString("en-GB")} ${noun}${amount === 1 ? "" : "s"}`;
}

/** Return dollars, with cents' parts where there are only those. */
export function dollars(amount) {
  return `$${amount >= 0.01 ? amount.toFixed(2) : amount.toFixed(4)}`;
}

function two(first, firstUnit, second, secondUnit) {
  return second ? `${first} ${firstUnit} ${second} ${secondUnit}` : `${first} ${firstUnit}`;
}

function digits(value) {
  const size = Math.abs(value);
  if (size > 0 && size < 0.01) return value.toPrecision(2);
  return value.toFixed(Number.isInteger(value) || size >= 10 ? 0 : size >= 1 ? 1 : 2);
}
