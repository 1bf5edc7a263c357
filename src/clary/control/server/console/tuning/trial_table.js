// All trials of a tuning job in a table that sorts by any column.

import { element, Kept } from "../base/element.js";
import { icon } from "../base/icons.js";
import { nameParts, panel } from "../base/places.js";
import { jobPath, link, query, setQuery } from "../base/router.js";
import { serviceNow } from "../base/service_time.js";
import { badge } from "../base/statuses.js";
import { duration, number } from "../base/words.js";
import { sparkline } from "../charts/sparkline.js";
import { valueWords } from "./range_scales.js";

const BEST = "value";
const ASCENDING = "asc";
const DESCENDING = "desc";

/** Make the table. Returns its element, `update(page)` and `mark(number)`; `pointed(number)` is called back. */
export class TrialTable {
  #page = null;
  #kept = new Kept();
  #marked = null;

  constructor({ pointed }) {
    const { sort, order } = query();
    this.pointed = pointed;
    this.sort = sort ?? "";
    this.order = order === DESCENDING ? DESCENDING : ASCENDING;
    this.place = element("div", { class: "scroll", tabindex: "0" });
    this.amount = element("span", { class: "faint number" });
    this.element = panel("Trials", this.place, { extra: this.amount });
  }

  update(page) {
    this.#page = page;
    this.amount.textContent = page.trials.length;
    const minute = page.ended_at ? 0 : Math.floor(Date.now() / 10_000);
    const focused = this.place.contains(document.activeElement) ? document.activeElement.dataset.part : undefined;
    this.#kept.show(this.place, [page.trials, page.best, this.sort, this.order, minute], () => this.#table());
    if (focused) this.place.querySelector(`[data-part="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
    this.mark(this.#marked);
  }

  /** Mark the row of a trial. */
  mark(number) {
    this.#marked = number;
    for (const row of this.place.querySelectorAll("tbody tr"))
      row.classList.toggle("row-marked", row.dataset.number === String(number));
  }

  #columns() {
    const page = this.#page;
    const names = [...new Set(page.definitions.flatMap((one) => one.ranges.map((range) => range.name)))];
    const why = (trial) =>
      [trial.continues && `goes on from trial ${trial.continues}`, trial.stop_reason || trial.failure_reason]
        .filter(Boolean)
        .join("; ");
    return [
      { key: "number", title: "#", of: (trial) => trial.number, cell: (trial) => trial.number },
      { key: "job", title: "Job", of: (trial) => trial.job, cell: jobLink },
      page.definitions.length > 1 && {
        key: "definition",
        title: "Definition",
        of: (trial) => trial.definition,
        cell: (trial) => trial.definition,
      },
      { key: "state", title: "Status", of: (trial) => trial.state, cell: (trial) => badge(trial.status, "", trial) },
      {
        key: BEST,
        title: page.objective.metric,
        of: (trial) => trial.value,
        cell: (trial) => value(trial, page.best?.number === trial.number),
      },
      ...names.map((name) => ({
        key: `p.${name}`,
        title: name,
        of: (trial) => comparable(trial.parameters[name]),
        cell: (trial) => valueWords(trial.parameters[name]),
      })),
      page.trials.some((trial) => trial.curve.length > 1) && {
        key: "curve",
        title: "Curve",
        of: (trial) => trial.curve.length,
        cell: (trial) => sparkline(trial.curve.map((one, index) => [index, one])),
      },
      { key: "took", title: "Took", of: tookS, cell: (trial) => duration(tookS(trial)) },
      page.trials.some(why) && {
        key: "why",
        title: "Why it stopped",
        of: (trial) => why(trial) || null,
        cell: (trial) => element("span", { class: "said small", title: why(trial) }, why(trial)),
      },
    ].filter(Boolean);
  }

  #table() {
    const columns = this.#columns();
    const { is_maximized } = this.#page.objective;
    const sorted = columns.find((column) => column.key === this.sort) ?? columns.find((column) => column.key === BEST);
    const order = this.sort === sorted.key ? this.order : is_maximized ? DESCENDING : ASCENDING;
    const rows = [...this.#page.trials].sort((one, other) => compare(sorted.of(one), sorted.of(other), order));
    const best = this.#page.best?.number;
    return element(
      "table",
      { class: "trials" },
      element(
        "thead",
        {},
        element(
          "tr",
          {},
          columns.map((column) => this.#head(column, column === sorted ? order : null)),
        ),
      ),
      element(
        "tbody",
        {},
        rows.map((trial) =>
          element(
            "tr",
            {
              class: trial.number === best ? "row-best" : "",
              data: { number: trial.number },
              on: { pointerenter: () => this.pointed(trial.number), focusin: () => this.pointed(trial.number) },
            },
            columns.map((column) => element("td", { class: `number cell-${column.key.split(".")[0]}` }, column.cell(trial))),
          ),
        ),
      ),
    );
  }

  #head(column, order) {
    const sort = () => {
      this.order = order === ASCENDING ? DESCENDING : ASCENDING;
      this.sort = column.key;
      setQuery({ sort: this.sort, order: this.order });
      this.update(this.#page);
    };
    const attributes = { class: "sort", type: "button", data: { part: `sort-${column.key}` }, on: { click: sort } };
    const drawing = order && icon("down", { class: order === ASCENDING ? "sort-up" : "" });
    return element(
      "th",
      { scope: "col", "aria-sort": order ? (order === ASCENDING ? "ascending" : "descending") : false },
      element("button", attributes, column.title, drawing),
    );
  }
}

function jobLink(trial) {
  const attributes = { class: "name", title: trial.job, "aria-label": trial.job, data: { part: `job-${trial.number}` } };
  return link(jobPath(trial.job), attributes, nameParts(trial.job));
}

function value(trial, isBest) {
  if (trial.value !== null)
    return [
      element(isBest ? "strong" : "span", {}, number(trial.value)),
      isBest && [" ", element("span", { class: "badge badge-good badge-plain" }, "best")],
    ];
  const last = trial.ended_at ? undefined : trial.curve.at(-1);
  return element("span", { class: "faint" }, last === undefined ? "–" : `${number(last)} so far`);
}

function tookS(trial) {
  if (!trial.started_at) return null;
  return ((trial.ended_at ? Date.parse(trial.ended_at) : serviceNow()) - Date.parse(trial.started_at)) / 1000;
}

function comparable(text) {
  if (text === undefined || text.trim() === "") return text ?? null;
  const found = Number(text);
  return Number.isFinite(found) ? found : text;
}

/** Compare cells: what is missing comes last either way. */
function compare(one, other, order) {
  if (one === null || other === null) return (one === null) - (other === null);
  const sign = order === ASCENDING ? 1 : -1;
  if (typeof one === "number" && typeof other === "number") return sign * (one - other);
  return sign * String(one).localeCompare(String(other), "en", { numeric: true });
}
