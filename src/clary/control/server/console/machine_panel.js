// The machine that hosts share: what is free of it, and what jobs hold.

import { element } from "./base/element.js";
import { panel } from "./base/places.js";
import { count, quantity } from "./base/words.js";

/** Make the panel. */
export function machinePanel(machine) {
  const held = (taken, all, noun) => `${taken} of ${count(all, noun)}`;
  const used = machine.cpu_free_percent === null ? null : 100 - machine.cpu_free_percent;
  const memory = machine.memory_bytes - machine.memory_free_bytes;
  const disk = machine.disk_bytes - machine.disk_free_bytes;
  const meters = [
    meter("Hosts", held(machine.hosts_held, machine.max_hosts, "host"), share(machine.hosts_held, machine.max_hosts)),
    meter(
      "Processors",
      `${used === null ? "" : `${Math.round(used)} % of `}${count(machine.num_cpus, "CPU")}${used === null ? "" : " busy"}`,
      used,
    ),
    meter(
      "Memory",
      `${quantity(machine.memory_free_bytes, "B")} free of ${quantity(machine.memory_bytes, "B")}`,
      share(memory, machine.memory_bytes),
    ),
    meter(
      "Memory promised",
      `${quantity(machine.promised_held_bytes, "B")} of ${quantity(machine.promised_bytes, "B")}`,
      share(machine.promised_held_bytes, machine.promised_bytes),
    ),
    meter(
      "GPUs",
      machine.num_gpus ? held(machine.gpus_held, machine.num_gpus, "GPU") : "none",
      machine.num_gpus ? share(machine.gpus_held, machine.num_gpus) : null,
    ),
    meter(
      "Disk",
      `${quantity(machine.disk_free_bytes, "B")} free of ${quantity(machine.disk_bytes, "B")}`,
      share(disk, machine.disk_bytes),
      machine.disk_place,
    ),
  ];
  const waiting = machine.num_waiting
    ? `${count(machine.num_waiting, "job")} waiting for hosts`
    : "no job waits for hosts";
  return panel("This machine", element("dl", { class: "meters" }, meters), {
    extra: element("span", { class: "faint" }, waiting),
  });
}

function meter(title, text, percent, place = "") {
  const full = percent === null ? null : Math.max(0, Math.min(100, percent));
  return element(
    "div",
    { title: place },
    element("dt", {}, title),
    element(
      "dd",
      { class: "number" },
      text,
      full !== null &&
        element(
          "div",
          {
            class: `progress${full >= 90 ? " progress-full" : ""}`,
            role: "meter",
            "aria-label": title,
            "aria-valuenow": Math.round(full),
            "aria-valuemin": 0,
            "aria-valuemax": 100,
          },
          element("div", { style: { width: `${full}%` } }),
        ),
    ),
  );
}

function share(part, whole) {
  return whole ? (100 * part) / whole : 0;
}
