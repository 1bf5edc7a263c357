// Hosts of running jobs, and those that warm pools keep.

import { get } from "./base/api.js";
import { element, Kept, refill } from "./base/element.js";
import { icon } from "./base/icons.js";
import { empty, failure, panel, skeleton } from "./base/places.js";
import { repeat } from "./base/repeating.js";
import { jobPath, link } from "./base/router.js";
import { ago, quantity } from "./base/words.js";
import { machinePanel } from "./machine_panel.js";
import { poolsTable } from "./pools_table.js";

const EVERY_MS = 3000;
const HEAD = ["Host", "Job", "State", "Type", "CPU", "Memory", "Health", "Since"];
const KINDS = { running: "live", warm: "good" };
const WARM = "warm";
const HEALTH = {
  sick: ["bad", "warning", "Sick"],
  well: ["good", "check", "Well"],
  checking: ["quiet", "clock", "Being checked"],
  unchecked: ["quiet", "clock", "Not checked"],
};

/** Make the page. */
export function hostsPage({ signal }) {
  const kept = new Kept();
  const place = element("div", { class: "stacked" }, skeleton(160));
  let isShown = false;
  const load = async () => {
    const page = await get("hosts", {}, signal);
    kept.show(place, [page, Math.floor(Date.now() / 60_000)], () => view(page)); // keep-alive runs down in it
    isShown = true;
  };
  return {
    title: "Hosts",
    element: element("div", {}, element("div", { class: "page-head" }, element("h1", {}, "Hosts")), place),
    shown: () => {
      const again = repeat(load, {
        everyMs: EVERY_MS,
        signal,
        failed: (error) =>
          error.status &&
          !isShown &&
          refill(
            place,
            failure(error, () => again()),
          ),
      });
    },
  };
}

function view(page) {
  const pooled = page.hosts.filter((host) => host.state === WARM);
  const busy = page.hosts.filter((host) => host.state !== WARM);
  const machine = page.machine && machinePanel(page.machine);
  if (!page.hosts.length && !page.pools.length)
    return [
      machine,
      panel(
        "Hosts of running jobs",
        empty("host", "No host is up", "Hosts appear here when a job gets them, and stay while a warm pool keeps them."),
      ),
    ];
  return [
    machine,
    busy.length > 0 &&
      panel("Hosts of running jobs", table(busy), { extra: element("span", { class: "faint number" }, busy.length) }),
    page.pools.length > 0 &&
      panel("Warm pools", [poolsTable(page.pools), pooled.length > 0 && table(pooled)], {
        extra: element("span", { class: "faint number" }, page.pools.length),
      }),
  ];
}

function table(hosts) {
  const head = element(
    "thead",
    {},
    element(
      "tr",
      {},
      HEAD.map((text) => element("th", { scope: "col" }, text)),
    ),
  );
  return element(
    "div",
    { class: "scroll", tabindex: "0" },
    element("table", { class: "hosts-table" }, head, element("tbody", {}, hosts.map(row))),
  );
}

function row(host) {
  const kind = KINDS[host.state] ?? "quiet";
  const cells = [
    host.name,
    link(jobPath(host.job), {}, host.job),
    element("span", { class: `badge badge-${kind} badge-plain` }, host.state),
    host.instance_type,
    quantity(host.cpu_percent, "%"),
    memory(host),
    health(host),
    host.since ? ago(host.since) : "–",
  ];
  return element(
    "tr",
    {},
    cells.map((cell, index) => element("td", { class: "number", data: { head: HEAD[index] } }, cell)),
  );
}

function memory(host) {
  if (host.memory_bytes === null) return "–";
  const share = host.memory_percent === null ? "" : `, ${Math.round(host.memory_percent)} %`;
  return `${quantity(host.memory_bytes, "B")}${share}`;
}

function health(host) {
  const [kind, drawing, word] = HEALTH[host.health] ?? HEALTH.unchecked;
  const badge = element("span", { class: `badge badge-${kind}` }, icon(drawing), word);
  return host.why ? element("span", { class: "why" }, badge, " ", host.why) : badge;
}
