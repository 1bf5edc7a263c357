// The last collective of every rank in each of its groups, those that stand out first.

import { element } from "../base/element.js";
import { panel } from "../base/places.js";
import { duration } from "../base/words.js";

const HEAD = ["Group", "Ranks", "Last collective", "State", "Since"];
const NAME_CHARACTERS = 12; // torch names some groups by a digest
const MOST_GROUPS = 12;

/** Make the panel; null where nothing is recorded. */
export function lastCollectives(groups = []) {
  const used = groups.filter((group) => group.members.some((member) => member.call));
  if (!used.length) return null;
  const head = element(
    "thead",
    {},
    element(
      "tr",
      {},
      HEAD.map((text) => element("th", { scope: "col" }, text)),
    ),
  );
  const rows = used.slice(0, MOST_GROUPS).flatMap(rowsOf);
  const more = used.length > MOST_GROUPS && element("p", { class: "soft small" }, `${used.length - MOST_GROUPS} more`);
  return panel("Last collectives", [
    element("div", { class: "scroll", tabindex: "0" }, element("table", { class: "calls" }, head, element("tbody", {}, rows))),
    more,
  ]);
}

function rowsOf(group) {
  const name = `${group.name.slice(0, NAME_CHARACTERS)} (${group.kind})`;
  return alike(group.members).map((members, index) => {
    const [{ call, differs, is_behind: isBehind, pid }] = members;
    const mark = differs ? "another" : isBehind ? "behind" : "";
    const cells = [
      index ? "" : name,
      members.map((member) => member.rank ?? `process ${member.pid}`).join(", ") + (pid ? "" : " (ended)"),
      callWords(call),
      [call?.state ?? "–", " ", mark && element("span", { class: "badge badge-warn badge-plain" }, mark)],
      call ? duration(Math.max(...members.map((member) => member.call.age_s))) : "–",
    ];
    return element(
      "tr",
      {},
      cells.map((cell) => element("td", { class: "number" }, cell)),
    );
  });
}

/** Put members together that have called the same, in the same state. */
function alike(members) {
  const found = new Map();
  for (const member of members) {
    const { number, operation, count, dtype, state, peer } = member.call ?? {};
    const facts = [number, operation, count, dtype, state, peer];
    const key = JSON.stringify([...facts, member.is_behind, member.differs, member.pid > 0]);
    found.set(key, [...(found.get(key) ?? []), member]);
  }
  return [...found.values()];
}

function callWords(call) {
  if (!call) return "none yet";
  const amount = call.count ? `, ${call.count} ${call.dtype || "elements"}` : "";
  return `${call.operation} #${call.number}${amount}${call.peer >= 0 ? `, peer ${call.peer}` : ""}`;
}
