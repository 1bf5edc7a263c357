// The log of a job while it is written: followed, searched, by host and rank; a million lines a stretch at a time.

import { element, refill } from "../base/element.js";
import { icon } from "../base/icons.js";
import { useKeys } from "../base/keys.js";
import { copyButton, empty, failure, skeleton } from "../base/places.js";
import { settled } from "../base/repeating.js";
import { query, setQuery } from "../base/router.js";
import { count, moment, stamp } from "../base/words.js";
import { dayLine, logLine, shownText } from "./log_line.js";
import { LogWindow } from "./log_window.js";
import { ProgressFolding } from "./progress_folding.js";

const EVERY_MS = 1000;
const FAILED_MS = 5000;
const TYPING_MS = 220;
const NEAR_PX = 900; // from an end: the next stretch is asked for
const NEAR_END_PX = 40; // as near as this one is at the end
const BLOCK = 100; // lines that are laid out together, or not at all while they are far away

/** Make the tab. */
export function logsTab({ name, facts, signal }) {
  const asked = { search: "", host: "", rank: "", ...query() };
  let log = null;
  let isFollowing = true;
  let isLoading = false;
  let timer = 0;

  const search = element("input", {
    type: "search",
    placeholder: "Search the log",
    "aria-label": "Search the log",
    value: asked.search,
    spellcheck: "false",
  });
  const host = element("select", { "aria-label": "Host" }, element("option", { value: "" }, "All hosts"));
  const rank = element("select", { "aria-label": "Rank" }, element("option", { value: "" }, "All ranks"));
  const follow = toggle("Follow", true, "down", (isOn) => ((isFollowing = isOn), isOn && toEnd()));
  const fold = toggle("Fold", true, null, (isOn) => lines.classList.toggle("log-folding", isOn));
  fold.button.title = "Of a progress bar show the last state alone";
  const folding = new ProgressFolding();
  const begins = new WeakMap(); // blocks and their first lines
  const wrap = toggle("Wrap", true, null, (isOn) => lines.classList.toggle("log-wrapped", isOn));
  const first = element("button", { class: "button", type: "button", on: { click: toBegin } }, "Start");
  const copy = copyButton(
    () =>
      log.lines
        .map(
          (line) =>
            `${stamp(line.at_ms)} ${line.host}${line.rank === null ? "" : ` rank ${line.rank}`}  ${shownText(line.text)}`,
        )
        .join("\n"),
    "Copy",
    { small: false },
  );
  const lines = element("div", {
    class: "log-lines log-wrapped log-folding",
    role: "log",
    "aria-label": "Log lines",
    "aria-live": "off",
    tabindex: "0",
  });
  const above = element("div", { class: "log-edge" });
  const blocks = element("div", {});
  const said = element("p", { class: "small faint log-said", role: "status" });
  lines.append(above, blocks);

  async function open(load = (fresh) => fresh.loadNewest()) {
    clearTimeout(timer);
    const mine = new LogWindow(name, { search: asked.search, host: asked.host, rank: asked.rank }, signal);
    mine.hosts = log?.hosts ?? [];
    log = mine;
    said.textContent = asked.search ? "Searching" : "Loading";
    try {
      await load(mine);
    } catch (error) {
      if (signal.aborted || log !== mine) return;
      refill(
        blocks,
        failure(error, () => open(load)),
      );
      timer = setTimeout(() => error.status || open(load), FAILED_MS);
      return;
    }
    if (log !== mine) return;
    drawAll();
    timer = setTimeout(look, EVERY_MS);
  }

  async function look() {
    const mine = log;
    let pause = EVERY_MS;
    // What is written meanwhile is only fetched where one can see it.
    if (mine.isAtEnd && !isLoading && !document.hidden) {
      try {
        await change(() => mine.loadNewer(), "end");
        if (mine.isOver && mine.isAtEnd) pause = 0;
      } catch {
        pause = FAILED_MS;
      }
    }
    if (!signal.aborted && log === mine && pause) timer = setTimeout(look, pause);
  }

  async function change(load, end) {
    isLoading = true;
    const mine = log;
    const before = { first: mine.lines[0], last: mine.lines.at(-1), height: lines.scrollHeight, top: lines.scrollTop };
    try {
      await load();
    } finally {
      isLoading = false;
    }
    if (log !== mine || (mine.lines[0] === before.first && mine.lines.at(-1) === before.last && mine.lines.length))
      return drawEdges();
    if (end === "end" && before.last && mine.lines.includes(before.last))
      append(mine.lines.slice(mine.lines.lastIndexOf(before.last) + 1), before.last);
    else drawAll(end);
    if (end === "begin") lines.scrollTop = before.top + lines.scrollHeight - before.height;
    else if (isFollowing) lines.scrollTop = lines.scrollHeight;
  }

  function drawAll(end = "") {
    const made = [];
    folding.clear();
    for (let index = 0; index < log.lines.length; index += BLOCK)
      made.push(block(log.lines.slice(index, index + BLOCK), log.lines[index - 1]));
    refill(blocks, made.length ? made : nothing());
    drawEdges();
    if (!end && isFollowing) lines.scrollTop = lines.scrollHeight;
  }

  function append(added, last) {
    blocks.querySelector(".empty")?.remove();
    for (let index = 0; index < added.length; index += BLOCK)
      blocks.append(block(added.slice(index, index + BLOCK), added[index - 1] ?? last));
    let surplus = [...blocks.children].reduce((sum, one) => sum + numLines(one), 0) - log.lines.length;
    const first = blocks.firstElementChild;
    while (surplus > 0 && numLines(blocks.firstElementChild) <= surplus) {
      surplus -= numLines(blocks.firstElementChild);
      blocks.firstElementChild.remove();
    }
    if (blocks.firstElementChild !== first) nameFirstDay();
    drawEdges();
  }

  /** Say the day of the first lines that are left, where the lines that said it were let go of. */
  function nameFirstDay() {
    const block = blocks.firstElementChild;
    const date = dayLine(begins.get(block));
    if (date && !block.firstElementChild.classList.contains("log-day")) block.prepend(date);
  }

  /** Make a block of lines; `last` is the line before them, if there is one. */
  function block(part, last) {
    const made = element(
      "div",
      { class: "log-block" },
      part.map((line, index) => {
        const node = logLine(line, { search: asked.search, hosts: log.hosts });
        folding.add(line, shownText(line.text), node);
        return [dayLine(line, part[index - 1] ?? last), node];
      }),
    );
    begins.set(made, part[0]);
    made.style.setProperty("contain-intrinsic-height", `auto ${made.children.length * 20}px`);
    return made;
  }

  function drawEdges() {
    const more =
      log.searchedUntil &&
      element(
        "button",
        { class: "button button-small", type: "button", on: { click: () => change(() => log.loadOlder(), "begin") } },
        `Searched back to ${moment(log.searchedUntil)}: go on`,
      );
    refill(above, more || (log.older ? "Loading older lines" : log.lines.length ? "The log begins here" : ""));
    const span = log.lines.length ? `, ${moment(log.lines[0].at_ms)} to ${moment(log.lines.at(-1).at_ms)}` : "";
    said.textContent = `${amountLoaded()}${span}${log.isOver ? "" : log.isAtEnd ? ", live" : ""}`;
    const { hosts, processes } = known(facts(), log.hosts);
    options(host, "All hosts", hosts, asked.host);
    options(
      rank,
      "All ranks",
      Array.from({ length: processes }, (_, index) => String(index)),
      asked.rank,
      "Rank ",
    );
    host.hidden = hosts.length < 2;
    rank.hidden = processes < 2 && !asked.rank;
  }

  function amountLoaded() {
    const { length } = log.lines;
    if (!asked.search && !asked.rank) return `${length.toLocaleString("en-GB")} of ${count(log.numLines, "line")} loaded`;
    const matching = `${count(length, "line")} loaded that match${length === 1 ? "es" : ""}`;
    return `${matching}, of a log of ${log.numLines.toLocaleString("en-GB")}`; // how many match in all nobody has counted
  }

  function nothing() {
    if (asked.search || asked.host || asked.rank)
      return empty(
        "search",
        "No line is like that",
        log.searchedUntil ? "Not yet: the search goes on from where it stands." : "The whole log was searched.",
      );
    return empty(
      "list",
      "No lines yet",
      facts().is_over ? "The program has written nothing." : "What the program writes appears here at once.",
    );
  }

  function scrolled() {
    if (!log || isLoading) return;
    const below = lines.scrollHeight - lines.scrollTop - lines.clientHeight;
    if (lines.scrollTop < NEAR_PX && log.older && !log.searchedUntil)
      change(() => log.loadOlder(), "begin").catch(() => {});
    else if (below < NEAR_PX && !log.isAtEnd) change(() => log.loadNewer(), "more").catch(() => {});
  }

  function isAtEnd() {
    return lines.scrollHeight - lines.scrollTop - lines.clientHeight <= NEAR_END_PX;
  }

  function toBegin() {
    follow.set(false);
    open((fresh) => fresh.loadOldest()).then(() => (lines.scrollTop = 0));
  }

  function toEnd() {
    if (log && !log.isAtEnd) open();
    else lines.scrollTop = lines.scrollHeight;
  }

  const ask = (values) => {
    Object.assign(asked, values);
    setQuery({ search: asked.search, host: asked.host, rank: asked.rank });
    open();
  };
  search.addEventListener(
    "input",
    settled(() => ask({ search: search.value }), TYPING_MS),
  );
  host.addEventListener("change", () => ask({ host: host.value }));
  rank.addEventListener("change", () => ask({ rank: rank.value }));
  lines.addEventListener("scroll", scrolled, { passive: true });
  // Only a person ends the following: lines that are laid out late, or wrapped anew, move the end away from under it.
  const leave = () => isFollowing && !isAtEnd() && follow.set(false);
  for (const kind of ["wheel", "touchmove", "keydown", "pointerup"])
    lines.addEventListener(kind, () => requestAnimationFrame(leave), { passive: true });
  const sized = new ResizeObserver(() => isFollowing && log?.isAtEnd && (lines.scrollTop = lines.scrollHeight));
  sized.observe(blocks);
  sized.observe(lines);
  signal.addEventListener("abort", () => sized.disconnect());
  signal.addEventListener("abort", () => clearTimeout(timer));
  useKeys({
    f: () => follow.set(!isFollowing),
    w: () => wrap.set(wrap.button.getAttribute("aria-pressed") !== "true"),
  });
  refill(blocks, skeleton(16, 16, 16, 16, 16, 16));
  open();
  const bar = element(
    "div",
    { class: "log-bar" },
    element("div", { class: "search" }, icon("search"), search, element("kbd", { class: "wide-only" }, "/")),
    host,
    rank,
    element("div", { class: "acts" }, first, follow.button, wrap.button, fold.button, copy),
  );
  return { element: element("div", { class: "logs" }, bar, element("div", { class: "panel log-panel" }, lines), said) };
}

function numLines(block) {
  return block.querySelectorAll(".log-line").length;
}

function toggle(text, isOn, drawing, changed) {
  const button = element(
    "button",
    { class: "button", type: "button", "aria-pressed": String(isOn) },
    drawing && icon(drawing),
    text,
  );
  const set = (value) => {
    if (button.getAttribute("aria-pressed") === String(value)) return;
    button.setAttribute("aria-pressed", String(value));
    changed(value);
  };
  button.addEventListener("click", () => set(button.getAttribute("aria-pressed") !== "true"));
  return { button, set };
}

function known(facts, hosts) {
  const processes = facts.hosts.reduce((sum, host) => sum + host.processes_per_host, 0);
  return {
    hosts: [...new Set(hosts)].sort((one, other) => one.localeCompare(other, "en", { numeric: true })),
    processes,
  };
}

function options(select, all, values, chosen, prefix = "") {
  if (select.options.length === values.length + 1) return;
  refill(
    select,
    element("option", { value: "" }, all),
    values.map((value) => element("option", { value, selected: value === chosen }, prefix + value)),
  );
}
