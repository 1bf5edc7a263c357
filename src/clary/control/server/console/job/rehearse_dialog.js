// Rehearsing a job: the faults to try are chosen here, the command that does it is made of them.

import { element } from "../base/element.js";
import { closeButton, copyButton, openDialog } from "../base/places.js";

const FAULTS = {
  kill: ["Kill a host", (host, at) => `--kill ${host}@${at}s`],
  "kill-rank": ["Kill rank 0", (_host, at) => `--kill-rank 0@${at}s`],
  reclaim: ["Take spot capacity back", (_host, at) => `--reclaim @${at}s`],
  partition: ["Cut a host off the network for 10 s", (host, at) => `--partition ${host}@${at}s+10s`],
  slow: ["Slow a host's link to 5 Mbit/s for 30 s", (host, at) => `--slow ${host}@${at}s+30s:5mbit`],
  "disk-full": ["Leave no room on a host's disk for 30 s", (host, at) => `--disk-full ${host}@${at}s+30s`],
};
const DEFAULT_AT_S = 60;

/** Ask which faults to rehearse a job under. */
export function askRehearsal(facts) {
  const names = facts.hosts.map((host) => host.name);
  const hosts = names.length ? names : Object.keys(facts.lanes ?? {});
  const host = element(
    "select",
    { id: "fault-host" },
    hosts.map((name) => element("option", { value: name, selected: name === hosts.at(-1) }, name)),
  );
  const at = element("input", { id: "fault-at", type: "number", min: 1, max: 86400, value: DEFAULT_AT_S });
  const choices = Object.entries(FAULTS).map(([key, [text]]) => {
    const box = element("input", { type: "checkbox", value: key, checked: key === "kill" });
    return [box, element("label", { class: "choice" }, box, text)];
  });
  const code = element("code", {});
  const show = () => {
    const wanted = choices
      .filter(([box]) => box.checked)
      .map(([box], index) =>
        FAULTS[box.value][1](host.value || "algo-1", Number(at.value || DEFAULT_AT_S) + 30 * index),
      );
    code.textContent = ["clary", "rehearse", facts.name, ...(wanted.length ? wanted : ["--random 3"])].join(" ");
  };
  const body = [
    element(
      "p",
      { class: "soft" },
      "A rehearsal runs the job again under faults, beside a twin that nothing disturbs, and certifies whether it resumes with the same results. Both are new jobs; this one is not touched.",
    ),
    element(
      "fieldset",
      { class: "faults" },
      element("legend", {}, "Faults"),
      choices.map(([, label]) => label),
    ),
    element("div", { class: "fields" }, field("Host", host), field("Seconds after training began", at)),
    element(
      "p",
      { class: "small soft" },
      "Run this where the service runs; it prints the certificate. Without a fault chosen, three are drawn.",
    ),
    element(
      "div",
      { class: "command" },
      code,
      copyButton(() => code.textContent),
    ),
  ];
  const dialog = openDialog(`Rehearse ${facts.name}`, body, { buttons: closeButton("Close") });
  dialog.addEventListener("input", show);
  show();
}

function field(text, control) {
  return element("div", { class: "field" }, element("label", { for: control.id }, text), control);
}
