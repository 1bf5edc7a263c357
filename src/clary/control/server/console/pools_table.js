// Warm pools: who holds the hosts, whether a job can have them, and for how long they still wait.

import { element } from "./base/element.js";
import { icon } from "./base/icons.js";
import { jobPath, link } from "./base/router.js";
import { count, duration } from "./base/words.js";

const HEAD = ["State", "Job", "Hosts", "Keep-alive left"];
const STATES = {
  ready: ["good", "check", "Ready for a job"],
  clearing: ["wait", "clock", "Being cleared"],
  used: ["live", "play", "In use"],
};

/** Make the table of the service's `pools`. */
export function poolsTable(pools) {
  return element(
    "div",
    { class: "scroll", tabindex: "0" },
    element(
      "table",
      { class: "pools-table", "aria-label": "Pools" },
      element(
        "thead",
        {},
        element(
          "tr",
          {},
          HEAD.map((text) => element("th", { scope: "col" }, text)),
        ),
      ),
      element("tbody", {}, pools.map(row)),
    ),
  );
}

function row(pool) {
  const isUsed = pool.left_s === null;
  const [kind, drawing, word] = STATES[isUsed ? "used" : pool.is_ready ? "ready" : "clearing"];
  const cells = [
    element("span", { class: `badge badge-${kind}` }, icon(drawing), word),
    element("span", {}, isUsed ? "Held by " : "Left by ", link(jobPath(pool.job), {}, pool.job)),
    `${count(pool.num_hosts, "host")} of ${pool.instance_type}`,
    isUsed ? afterwards(pool) : left(pool),
  ];
  return element(
    "tr",
    {},
    cells.map((cell) => element("td", { class: "number" }, cell)),
  );
}

function afterwards(pool) {
  const words = pool.keep_alive_s ? `${duration(pool.keep_alive_s)} after the job` : "Given back after the job";
  return element("span", { class: "soft" }, words);
}

function left(pool) {
  const words = `${duration(pool.left_s)} of ${duration(pool.keep_alive_s)}`;
  return element(
    "div",
    { class: "left" },
    element("span", {}, words),
    element("progress", { max: pool.keep_alive_s || 1, value: pool.left_s, "aria-label": `Keep-alive left: ${words}` }),
  );
}
