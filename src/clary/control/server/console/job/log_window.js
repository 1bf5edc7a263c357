// The stretch of a log that is loaded: grows at both ends, lets go of what is far from where one reads.

import { get, ofJob } from "../base/api.js";

const PAGE = 400;
const MOST = 6000; // lines that are kept; a million are read a stretch at a time
const ENOUGH = 60; // lines that end a search's first round
const MOST_ROUNDS = 40; // of a search that finds little; then it goes on when asked

export class LogWindow {
  lines = []; // oldest first
  older = null; // cursor of what is before them; null where they begin
  newer = null; // cursor of what comes after them
  isAtEnd = true; // whether nothing newer was let go of
  isOver = false;
  searchedUntil = null; // milliseconds; a search that has not come to the log's begin yet
  hosts = [];
  numLines = 0; // of the whole log, of all hosts and ranks

  /** `wanted`: host, rank and search; empty for all. */
  constructor(name, wanted, signal) {
    Object.assign(this, { name, wanted, signal });
  }

  async loadNewest() {
    let page = await this.#ask({});
    this.lines = page.lines.reverse();
    this.newer = page.previous;
    this.isAtEnd = true;
    this.#noteOlder(page);
    for (let round = 0; round < MOST_ROUNDS && page.searched_until && this.lines.length < ENOUGH; round++)
      page = await this.loadOlder();
  }

  async loadOldest() {
    const host = this.hosts[0];
    if (!host) return this.loadNewest();
    const page = await this.#ask({ after: `0.${host}.-1` });
    this.lines = page.lines.reverse();
    this.older = null;
    this.searchedUntil = null;
    this.newer = page.previous;
    this.isAtEnd = page.lines.length < PAGE && !page.searched_until;
  }

  /** Load what is before the first line; returns the page. */
  async loadOlder() {
    const page = await this.#ask({ before: this.older });
    this.lines.unshift(...page.lines.reverse());
    this.#noteOlder(page);
    if (this.lines.length > MOST) {
      this.lines.length = MOST;
      this.newer = this.lines.at(-1).cursor;
      this.isAtEnd = false;
    }
    return page;
  }

  /** Load what comes after the last line; returns how many lines came, and how many were let go of at the begin. */
  async loadNewer() {
    if (this.newer === null) {
      await this.loadNewest();
      return { added: this.lines.length, dropped: 0 };
    }
    const page = await this.#ask({ after: this.newer });
    const added = page.lines.reverse();
    this.lines.push(...added);
    this.newer = page.previous ?? this.newer;
    this.isAtEnd = added.length < PAGE && !page.searched_until;
    const dropped = Math.max(0, this.lines.length - MOST);
    if (dropped) {
      this.lines.splice(0, dropped);
      this.older = this.lines[0].cursor;
    }
    return { added: added.length, dropped };
  }

  async #ask(place) {
    const page = await get(ofJob(this.name, "log-lines"), { ...this.wanted, ...place, limit: PAGE }, this.signal);
    this.isOver = page.is_over;
    this.hosts = page.hosts ?? this.hosts;
    this.numLines = page.num_lines;
    return page;
  }

  #noteOlder(page) {
    this.older = page.next;
    this.searchedUntil = page.next ? page.searched_until : null;
  }
}
