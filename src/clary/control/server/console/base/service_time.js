// What time it is for the service: this computer's clock may be wrong, the times of jobs are the service's.

const ACCURACY_MS = 1000; // the header Date counts whole seconds
let least = -Infinity; // milliseconds that the service's clock is ahead: at least, and at most
let most = Infinity;

/**
 * Take note of the time that an answer bears.
 * Args: text: its header Date; askedMs, answeredMs: this computer's time before and after.
 */
export function noteServiceTime(text, askedMs, answeredMs) {
  const said = Date.parse(text ?? "");
  if (!Number.isFinite(said)) return;
  const [low, high] = [said - answeredMs, said + ACCURACY_MS - askedMs];
  const isOther = low > most || high < least; // one of the clocks was set
  [least, most] = isOther ? [low, high] : [Math.max(low, least), Math.min(high, most)];
}

/** Return the service's time in milliseconds: this computer's, unless the two differ for certain. */
export function serviceNow() {
  const isSame = least <= 0 && most >= 0;
  return Date.now() + (isSame ? 0 : Math.round((least + most) / 2));
}
