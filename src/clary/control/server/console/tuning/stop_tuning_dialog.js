// Stopping a tuning job: what will happen is said before it does.

import { post } from "../base/api.js";
import { askStopping } from "../base/places.js";

/** Ask whether to stop a tuning job; `done` runs when it was told to. */
export function askStopTuning(page, done) {
  const numRunning = page.counters.InProgress || 0;
  const running = numRunning === 1 ? "The trial that runs is" : `The ${numRunning} trials that run are`;
  const told = [
    "No further trial starts.",
    numRunning > 0 &&
      `${running} stopped: every process gets SIGTERM and the time to store a last checkpoint.`,
    "What trials have told and stored is kept. The tuning job ends as Stopped.",
  ].filter(Boolean);
  const act = () => post(`tuning/${encodeURIComponent(page.name)}/stop`);
  askStopping({ name: page.name, told, words: "Stop the tuning job", act, done });
}
