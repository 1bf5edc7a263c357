// Stopping a tuning job: what will happen is said before it does.

import { post } from "../base/api.js";
import { element } from "../base/element.js";
import { closeButton, openDialog, toast } from "../base/places.js";

/** Ask whether to stop a tuning job; `done` runs when it was told to. */
export function askStopTuning(page, done) {
  const wrong = element("p", { class: "reason-bad", role: "alert" });
  const numRunning = page.counters.InProgress || 0;
  const told = [
    "No further trial starts.",
    numRunning > 0 &&
      `${numRunning === 1 ? "The trial that runs is" : `The ${numRunning} trials that run are`} stopped: every process gets SIGTERM and the time to store a last checkpoint.`,
    "What trials have told and stored is kept. The tuning job ends as Stopped.",
  ].filter(Boolean);
  const stop = element("button", { class: "button button-stop", type: "submit" }, "Stop the tuning job");
  const submit = async (dialog) => {
    stop.disabled = true;
    wrong.textContent = "";
    try {
      await post(`tuning/${encodeURIComponent(page.name)}/stop`);
      dialog.close();
      toast(`${page.name} is stopping`, "stop");
      done();
    } catch (error) {
      wrong.textContent = error.message;
      stop.disabled = false;
    }
  };
  const list = element(
    "ul",
    { class: "told" },
    told.map((text) => element("li", {}, text)),
  );
  openDialog(`Stop ${page.name}?`, [list, wrong], { submit, buttons: [closeButton("Keep it running"), stop] });
}
