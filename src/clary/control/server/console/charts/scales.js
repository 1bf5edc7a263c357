// From values to places on a chart and back, and where its ticks stand. Pure.

const NICE = [1, 2, 2.5, 5, 10];
const MOST_TICKS = 100; // numbers so large that the next one is the same would never end
const LEAST_POWER = -324; // of ten, that numbers have
const GREATEST_POWER = 308;
const TIME_STEPS_S = [
  0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14_400, 21_600, 43_200, 86_400, 172_800,
  604_800,
];

/** Return a scale between two values, on `from` to `to` pixels; on a logarithmic one values must be above 0. */
export function scale([least, greatest], [from, to], { isLog = false } = {}) {
  const bend = isLog ? Math.log10 : (value) => value;
  const low = bend(least);
  const span = bend(greatest) - low || 1;
  return {
    place: (value) => from + ((bend(value) - low) / span) * (to - from),
    value: (place) => {
      const bent = low + ((place - from) / (to - from)) * span;
      return isLog ? 10 ** bent : bent;
    },
  };
}

/** Return about `amount` round values between two. */
export function ticks([least, greatest], amount) {
  const rough = (greatest - least) / Math.max(1, amount);
  if (!(rough > 0)) return [least];
  const power = 10 ** Math.floor(Math.log10(rough));
  return every(power * NICE.find((nice) => nice * power >= rough * 0.999), least, greatest);
}

/** Return about `amount` round moments between two, which are in milliseconds. */
export function timeTicks([least, greatest], amount, zero = 0) {
  const rough = (greatest - least) / 1000 / Math.max(1, amount);
  const step = (TIME_STEPS_S.find((known) => known >= rough) ?? Math.ceil(rough / 604_800) * 604_800) * 1000;
  return every(step, least - zero, greatest - zero).map((value) => value + zero);
}

/** Return powers of ten between two values, with 2 and 5 where there are few. */
export function logTicks([least, greatest]) {
  const powers = [];
  const last = Math.min(GREATEST_POWER, Math.ceil(Math.log10(greatest)));
  for (let power = Math.max(LEAST_POWER, Math.floor(Math.log10(least))); power <= last; power++)
    powers.push(10 ** power);
  const wanted = powers.length > 4 ? powers : powers.flatMap((power) => [power, 2 * power, 5 * power]);
  const inside = wanted.filter((value) => value >= least * 0.999 && value <= greatest * 1.001);
  const skip = Math.ceil(inside.length / 6);
  return inside.filter((_, index) => index % skip === 0);
}

/** Return a span that holds all values with a little room; from 0 where they come near it. */
export function roomFor(values, { isLog = false, unit = "" } = {}) {
  let least = Infinity;
  let greatest = -Infinity;
  for (const value of values) {
    if (!Number.isFinite(value) || (isLog && value <= 0)) continue;
    if (value < least) least = value;
    if (value > greatest) greatest = value;
  }
  if (least > greatest) return isLog ? [0.1, 10] : [0, 1];
  if (isLog) return least === greatest ? [least / 2, greatest * 2] : [least / 1.1, greatest * 1.1];
  if (least === greatest) return least === 0 ? [0, 1] : [Math.min(0, least * 1.2), Math.max(0, greatest * 1.2)];
  const room = (greatest - least) * 0.06;
  const isNearZero = least >= 0 && (unit !== "" || least < greatest * 0.35);
  return [isNearZero ? 0 : least - room, greatest + room];
}

/** Return the index of the point of a line whose time is nearest; points are in order. */
export function nearest(points, at) {
  let low = 0;
  let high = points.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (points[middle][0] < at) low = middle + 1;
    else high = middle;
  }
  return low > 0 && at - points[low - 1][0] < points[low][0] - at ? low - 1 : low;
}

function every(step, least, greatest) {
  const found = [];
  const first = Math.ceil(least / step - 1e-9);
  for (let index = first; found.length < MOST_TICKS && index * step <= greatest + step * 1e-9; index++)
    found.push(Number((index * step).toPrecision(12)));
  return found;
}
