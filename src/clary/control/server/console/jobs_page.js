// All jobs: found by status and text, sorted, live, ten thousand as fast as ten.

import { get } from "./base/api.js";
import { element, refill } from "./base/element.js";
import { icon } from "./base/icons.js";
import { useKeys } from "./base/keys.js";
import { empty, failure } from "./base/places.js";
import { repeat, settled } from "./base/repeating.js";
import { go, jobPath, link, query, setQuery } from "./base/router.js";
import { VirtualList } from "./base/virtual_list.js";
import { FarJobs } from "./far_jobs.js";
import { jobRow, rowHeight, skeletonRow } from "./job_row.js";

const PAGE = 100; // jobs of the first answer
const MOST_PAGE = 500; // of those that scrolling asks for
const AROUND = 20; // jobs beside those in sight that are asked for with them, where one has scrolled far
const EVERY_MS = 3000;
const TYPING_MS = 140;
const MOST_COMPARED = 6;
const STATES = ["Queued", "Starting", "Running", "Stopping", "Completed", "Failed", "Stopped"];
const ASCENDING = ["name", "status"];
const SORTS = { created: "Newest", name: "Name", status: "Status", duration: "Longest" };

/** Make the page. */
export function jobsPage({ signal }) {
  const asked = { search: "", status: "", sort: "created", ...query() };
  const selected = new Set();
  const far = new FarJobs();
  let jobs = [];
  let next = null;
  let total = 0;
  let marked = -1;
  let round = 0;
  let loading = null;

  const search = element("input", {
    type: "search",
    placeholder: "Search names, states and reasons",
    "aria-label": "Search jobs",
    value: asked.search,
    spellcheck: "false",
  });
  const chips = element("div", { class: "chips", role: "group", "aria-label": "Filter by status" });
  const sort = element(
    "select",
    { "aria-label": "Sort by" },
    Object.entries(SORTS).map(([value, text]) => element("option", { value, selected: value === asked.sort }, text)),
  );
  const said = element("p", { class: "hidden-text", role: "status" });
  const bar = element("div", { class: "selection", hidden: true });
  const list = new VirtualList({ row: rowAt, height: rowHeight, seen: loadMore, signal });
  const head = element(
    "div",
    { class: "row row-head", role: "row" },
    ["Select", "Job", "Status", "Progress", "Last metrics", "Hosts", "Started", "Took"].map((text) =>
      element("div", { role: "columnheader", class: text === "Select" ? "hidden-head" : "" }, text),
    ),
  );
  const table = element(
    "div",
    { class: "panel jobs", role: "table", "aria-label": "Jobs", "aria-busy": "true" },
    head,
    list.element,
  );
  const nothing = element("div", {});

  function rowAt(index) {
    const job = jobs[index] ?? far.at(index, total);
    if (!job) return { key: `gap-${index}`, text: "", make: skeletonRow };
    const isMarked = index === marked;
    const isSelected = selected.has(job.name);
    const text = JSON.stringify([{ ...job, cameAtMs: 0 }, isMarked, isSelected, Math.floor(Date.now() / EVERY_MS)]);
    return { key: job.name, text, make: () => jobRow(job, { isMarked, isSelected, select: () => toggle(job.name) }) };
  }

  async function load() {
    const mine = round;
    const page = await getJobs({ ...wanted(), limit: PAGE }, signal);
    if (mine !== round) return;
    // Rows behind the first page stay as they were loaded; they are asked for anew when the question changes. As many
    // as are new at the top have moved out of the first page at its end.
    const names = new Set(page.jobs.map((job) => job.name));
    const known = new Set(jobs.map((job) => job.name));
    const numNew = page.jobs.filter((job) => !known.has(job.name)).length;
    const isFirst = jobs.length <= PAGE;
    jobs = isFirst
      ? page.jobs
      : [...page.jobs, ...jobs.filter((job, index) => index >= PAGE - numNew && !names.has(job.name))];
    if (isFirst) next = page.next;
    total = page.total;
    show(page);
  }

  function show(page) {
    table.removeAttribute("aria-busy");
    table.hidden = total === 0;
    list.setLength(next ? total : jobs.length);
    showChips(page.states ?? {});
    const isFiltered = asked.search || asked.status;
    refill(nothing, total === 0 && (isFiltered ? noneFound() : noneYet()));
    said.textContent = total === 1 ? "1 job" : `${total} jobs`;
  }

  // What comes next is loaded page by page. Who has scrolled further than a page gets what is in sight, and not all
  // that is between.
  async function loadMore(first, last) {
    if (!next || loading || last <= jobs.length) return;
    const isFar = last > jobs.length + MOST_PAGE;
    const begin = isFar ? Math.max(jobs.length, first - AROUND) : jobs.length;
    const limit = isFar ? Math.min(MOST_PAGE, last - begin + AROUND) : MOST_PAGE;
    // A window that holds more than a page shows what it got, and does not ask for the same page again and again.
    if (isFar && far.has(Math.max(first, jobs.length), Math.min(last, begin + limit), total)) return;
    const place = { first: begin, limit, total };
    const mine = round;
    loading = getJobs({ ...wanted(), limit, after: next, skip: begin - jobs.length || "" }, signal);
    try {
      const page = await loading;
      loading = null;
      if (mine !== round) return;
      if (isFar) far.put(page, place);
      else {
        const known = new Set(jobs.map((job) => job.name));
        jobs = [...jobs, ...page.jobs.filter((job) => !known.has(job.name))];
        next = page.next;
      }
      list.setLength(next ? total : jobs.length); // which asks for more if that was not enough
    } catch {
      // The next look at the first page says what is wrong, and asks again: not at once, and not after the page is left.
      loading = null;
    }
  }

  function wanted() {
    return {
      search: asked.search,
      [STATES.includes(asked.status) ? "state" : "status"]: asked.status, // InProgress is no state of a job's life
      sort: asked.sort,
      order: ASCENDING.includes(asked.sort) ? "asc" : "desc",
    };
  }

  function showChips(counts) {
    const all = Object.values(counts).reduce((sum, amount) => sum + amount, 0);
    const make = (state, text, amount) =>
      element(
        "button",
        {
          class: "chip",
          type: "button",
          "aria-pressed": String(asked.status === state),
          on: { click: () => ask({ status: asked.status === state ? "" : state }) },
        },
        text,
        element("span", { class: "number" }, amount.toLocaleString("en-GB")),
      );
    const shown = STATES.filter((state) => counts[state] || asked.status === state);
    refill(
      chips,
      make("", "All", all),
      shown.map((state) => make(state, state, counts[state] ?? 0)),
    );
  }

  function ask(change) {
    Object.assign(asked, change);
    setQuery({ search: asked.search, status: asked.status, sort: asked.sort === "created" ? "" : asked.sort });
    round++;
    jobs = [];
    far.clear();
    next = null;
    marked = -1;
    again();
  }

  function toggle(name) {
    if (!selected.delete(name)) selected.add(name);
    const names = [...selected];
    bar.hidden = !names.length;
    const compare = link(
      `/console/compare?jobs=${names.map(encodeURIComponent).join(",")}`,
      { class: "button button-main" },
      icon("chart"),
      "Compare",
    );
    const few = element(
      "span",
      { class: "soft" },
      names.length < 2 ? "Select another job to compare with it" : `At most ${MOST_COMPARED} can be compared`,
    );
    const clear = element(
      "button",
      { class: "button", type: "button", on: { click: () => (selected.clear(), (bar.hidden = true), list.refresh()) } },
      "Clear",
    );
    refill(
      bar,
      element("strong", {}, `${names.length} selected`),
      names.length >= 2 && names.length <= MOST_COMPARED ? compare : few,
      clear,
    );
    list.refresh();
  }

  function mark(step) {
    if (!jobs.length) return;
    marked = Math.max(0, Math.min(jobs.length - 1, marked + step));
    list.reveal(marked);
    table.querySelector(".row-marked a")?.focus({ preventScroll: true });
  }

  function noneFound() {
    const clear = () => ((search.value = ""), ask({ search: "", status: "" }));
    return empty(
      "search",
      "No job is like that",
      "Nothing has this text in its name, state or reason, and this status.",
      element("button", { class: "button", type: "button", on: { click: clear } }, "Show all jobs"),
    );
  }

  search.addEventListener(
    "input",
    settled(() => ask({ search: search.value.trim() }), TYPING_MS),
  );
  sort.addEventListener("change", () => ask({ sort: sort.value }));
  useKeys({
    "/": () => search.focus(),
    j: () => mark(1),
    k: () => mark(-1),
    Enter: (event) =>
      marked >= 0 && !event.target.closest("button, nav, .page-head") ? go(jobPath(jobs[marked].name)) : false,
    x: () => marked >= 0 && toggle(jobs[marked].name),
    Escape: () => (search.value ? ((search.value = ""), ask({ search: "" })) : document.activeElement?.blur()),
  });

  const page = element(
    "div",
    {},
    element(
      "div",
      { class: "page-head" },
      element("h1", {}, "Jobs"),
      element("div", { class: "search" }, icon("search"), search, element("kbd", { class: "wide-only" }, "/")),
      element("div", {}, sort),
    ),
    chips,
    said,
    table,
    nothing,
    bar,
  );
  refill(
    list.element,
    Array.from({ length: 8 }, (_, index) => skeletonRow(index)),
  );
  let again = () => {};
  return {
    title: "Jobs",
    element: page,
    shown: () => {
      let isFirst = true;
      again = repeat(async () => (isFirst && refill(list.element), (isFirst = false), await load()), {
        everyMs: EVERY_MS,
        signal,
        failed: (error) =>
          !jobs.length &&
          error.status &&
          refill(
            nothing,
            failure(error, () => again()),
          ),
      });
    },
  };
}

/** Return a page of jobs; each knows when it came, from when on a running one's time goes on. */
async function getJobs(query, signal) {
  const page = await get("jobs", query, signal);
  const cameAtMs = performance.now();
  return { ...page, jobs: page.jobs.map((job) => ({ ...job, cameAtMs })) };
}

function noneYet() {
  const text = "Point any SageMaker client at this service and create a training job. It appears here at once.";
  const command = element("div", { class: "command" }, element("code", {}, 'eval "$(clary env)"'));
  return empty("list", "No jobs yet", text, command);
}
