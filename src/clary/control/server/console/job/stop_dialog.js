// Stopping a job: what will happen is said before it does.

import { ofJob, post } from "../base/api.js";
import { element } from "../base/element.js";
import { closeButton, openDialog, toast } from "../base/places.js";

/** Ask whether to stop a job; `done` runs when it was told to. */
export function askStop(facts, done) {
  const wrong = element("p", { class: "reason-bad", role: "alert" });
  const hasProgram = facts.hosts.length > 0;
  const told = hasProgram
    ? [
        "Every process gets SIGTERM and the time to store a last checkpoint, then it is killed.",
        "What lies in /opt/ml/model and /opt/ml/output is uploaded and kept.",
        "The job ends as Stopped. It is not tried again.",
      ]
    : ["The job leaves the queue before any host has started.", "It ends as Stopped. It is not tried again."];
  const stop = element("button", { class: "button button-stop", type: "submit" }, "Stop the job");
  const submit = async (dialog) => {
    stop.disabled = true;
    wrong.textContent = "";
    try {
      await post(ofJob(facts.name, "stop"));
      dialog.close();
      toast(`${facts.name} is stopping`, "stop");
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
  openDialog(`Stop ${facts.name}?`, [list, wrong], { submit, buttons: [closeButton("Keep it running"), stop] });
}
