// Places of hyperparameters on their axes, from 0 to 1, in the scaling of their ranges. Pure.

import { number } from "../base/words.js";

/** Return a range's axis: its name, the place of a text (null for one that is none of its values), and its ticks. */
export function axisOf(range) {
  return range.kind === "categorical" ? ofWords(range) : ofNumbers(range);
}

/** Return the axis of the objective over these values. */
export function objectiveAxis(name, values) {
  const [least, greatest] = [Math.min(...values), Math.max(...values)];
  return ofNumbers({ name, kind: "continuous", least, greatest, scaling: "Linear" });
}

/** Return a hyperparameter's value as people read it: numbers with about four digits. */
export function valueWords(text) {
  const value = Number(text);
  return text === undefined ? "–" : String(text).trim() === "" || !Number.isFinite(value) ? String(text) : number(value);
}

function ofWords({ name, values }) {
  const place = (text) => {
    const index = values.indexOf(text);
    return index < 0 ? null : values.length === 1 ? 0.5 : index / (values.length - 1);
  };
  return { name, place, ticks: values.map((text) => [place(text), text]) };
}

function ofNumbers({ name, kind, least, greatest, scaling }) {
  const bend = { Logarithmic: Math.log, ReverseLogarithmic: (value) => -Math.log(1 - value) }[scaling] ?? ((value) => value);
  const unbend =
    { Logarithmic: Math.exp, ReverseLogarithmic: (value) => 1 - Math.exp(-value) }[scaling] ?? ((value) => value);
  const low = bend(least);
  const span = bend(greatest) - low;
  const place = (given) => {
    const value = Number(given);
    if (given === undefined || given === null || !Number.isFinite(value)) return null;
    return span > 0 ? Math.max(0, Math.min(1, (bend(value) - low) / span)) : 0.5;
  };
  const middle = unbend(low + span / 2);
  const shown = span > 0 ? [least, kind === "integer" ? Math.round(middle) : middle, greatest] : [least];
  return { name, place, ticks: [...new Set(shown)].map((value) => [place(value), number(value)]) };
}
