// Stopping a job: what will happen is said before it does.

import { ofJob, post } from "../base/api.js";
import { askStopping } from "../base/places.js";

/** Ask whether to stop a job; `done` runs when it was told to. */
export function askStop(facts, done) {
  const hasProgram = facts.hosts.length > 0;
  const told = hasProgram
    ? [
        "Every process gets SIGTERM and the time to store a last checkpoint, then it is killed.",
        "What lies in /opt/ml/model and /opt/ml/output is uploaded and kept.",
        "The job ends as Stopped. It is not tried again.",
      ]
    : ["The job leaves the queue before any host has started.", "It ends as Stopped. It is not tried again."];
  const act = () => post(ofJob(facts.name, "stop"));
  askStopping({ name: facts.name, told, words: "Stop the job", act, done });
}
