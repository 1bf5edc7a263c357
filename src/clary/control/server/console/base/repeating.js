// Asks again and again while a page is open: less often when hidden or refused, at once when looked at again.

import { connection } from "./api.js";

const SLOWEST_MS = 30_000;
const HIDDEN_MS = 60_000;

/**
 * Run `task` now and every `everyMs` after it has ended, until `signal` is aborted or it returns false.
 * Errors go to `failed`, and each doubles the pause.
 */
export function repeat(task, { everyMs, signal, failed }) {
  let timer = 0;
  let pauseMs = everyMs;
  let isRunning = false;
  let isDone = false;
  const turn = async () => {
    if (isRunning || isDone || signal.aborted) return;
    clearTimeout(timer);
    isRunning = true;
    try {
      isDone = (await task()) === false;
      pauseMs = everyMs;
    } catch (error) {
      if (!signal.aborted) failed(error);
      pauseMs = Math.min(SLOWEST_MS, pauseMs * 2);
    }
    isRunning = false;
    if (!isDone && !signal.aborted) timer = setTimeout(turn, document.hidden ? HIDDEN_MS : pauseMs);
  };
  const look = () => document.hidden || turn();
  document.addEventListener("visibilitychange", look, { signal });
  connection.addEventListener("retry", turn, { signal });
  signal.addEventListener("abort", () => clearTimeout(timer));
  turn();
  return turn;
}

/** Return a function that runs `action` once nothing has called it for a while. */
export function settled(action, pauseMs) {
  let timer = 0;
  return (...values) => {
    clearTimeout(timer);
    timer = setTimeout(() => action(...values), pauseMs);
  };
}
