// Jobs of a long list that are known far behind those that were loaded from its begin.

/**
 * Jobs by how far they are from the list's end: jobs that are created meanwhile push all others down, and leave them
 * as far from the end as they were. Places count from 0; `total` is how many the whole list has.
 */
export class FarJobs {
  #known = new Map(); // distance from the end -> job; null where the service had none

  /** Return the job at a place; undefined where none is known. */
  at(index, total) {
    return this.#known.get(total - index) ?? undefined;
  }

  /** Whether all places from `first` to before `last` were asked for. */
  has(first, last, total) {
    for (let index = first; index < last; index++) if (!this.#known.has(total - index)) return false;
    return true;
  }

  /** Keep a page that was asked for with `limit` jobs from place `first` on. */
  put(page, { first, limit, total }) {
    for (let index = first; index < Math.min(total, first + limit); index++) this.#known.set(total - index, null);
    const begin = page.next ? first : total - page.jobs.length; // the last page ends where the list does
    page.jobs.forEach((job, index) => this.#known.set(total - begin - index, job));
  }

  clear() {
    this.#known.clear();
  }
}
