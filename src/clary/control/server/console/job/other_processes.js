// The processes of a job that are not ranks: wrappers, workers of data loaders, programs that are not Python.

import { element } from "../base/element.js";
import { panel } from "../base/places.js";

const HEAD = ["Host", "Process", "State", "Waits in", "Command"];
const STATES = { R: "running", S: "sleeping", D: "in a call of the kernel", T: "stopped", t: "traced", Z: "ended" };
const MOST = 30;

/** Make the panel of what hosts have found; null where every process is a rank. */
export function otherProcesses(dumps) {
  const others = Object.entries(dumps).flatMap(([host, dump]) =>
    dump.processes.filter((process) => process.rank === null).map((process) => ({ host, ...process })),
  );
  if (!others.length) return null;
  const head = element(
    "thead",
    {},
    element(
      "tr",
      {},
      HEAD.map((text) => element("th", { scope: "col" }, text)),
    ),
  );
  const more = others.length > MOST && element("p", { class: "soft small" }, `${others.length - MOST} more`);
  const why = [...new Set(others.map((process) => process.error).filter(Boolean))].join("; ");
  return panel("Other processes", [
    element("div", { class: "scroll", tabindex: "0" }, element("table", {}, head, element("tbody", {}, others.slice(0, MOST).map(row)))),
    more,
    why && element("p", { class: "soft small below" }, `Without stacks: ${why}`),
  ]);
}

function row({ host, pid, state, wait_channel: waitChannel, command }) {
  const cells = [host, pid, STATES[state] ?? state, waitChannel || "–", element("span", { class: "mono" }, command)];
  return element(
    "tr",
    {},
    cells.map((cell) => element("td", {}, cell)),
  );
}
