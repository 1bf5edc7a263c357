// Lines of progress bars, as tqdm prints them: of many states of one bar the last is shown.

const BAR = /^([^|]*?)(\d{1,3})%\|[^|]*\|\s*[\d.,kMGT]+\/[\d.,kMGT]+ \[/;
const MOST = 1000; // characters of a line that are looked at: bars are as wide as a terminal

/** Return `{bar, percent}`: what one bar's lines have in common, and how far it is; null of a line that is no bar. */
export function barOf(text) {
  const found = BAR.exec(text.slice(0, MOST));
  return found ? { bar: found[1].trim(), percent: Number(found[2]) } : null;
}

/**
 * Hides all states of a bar but the last, whatever was printed between, while lines come at the end.
 * A bar that falls back has begun anew: the one before, of another epoch say, keeps its last state.
 */
export class ProgressFolding {
  #last = new Map(); // who and bar -> {percent, node, count}

  /** Take note of a line that is drawn behind all others of the log. */
  add(line, text, node) {
    const found = barOf(text);
    if (found === null) return;
    const who = JSON.stringify([line.host, line.rank, found.bar]);
    const before = this.#last.get(who);
    const isSame = before !== undefined && before.percent <= found.percent;
    if (isSame) before.node.classList.add("log-folded");
    const count = isSame ? before.count + 1 : 1;
    if (count > 1) node.title = `Last of ${count.toLocaleString("en-GB")} states of this progress bar`;
    this.#last.set(who, { percent: found.percent, node, count });
  }

  /** Begin anew: all lines are drawn again. */
  clear() {
    this.#last.clear();
  }
}
