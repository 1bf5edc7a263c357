// Lines of progress bars, as tqdm prints them: of many states of one bar the last is shown.

const BAR = /^([^|]*?)\d{1,3}%\|[^|]*\|\s*[\d.,kMGT]+\/[\d.,kMGT]+ \[/;
const MOST = 1000; // characters of a line that are looked at: bars are as wide as a terminal

/** Return what one bar's lines have in common; null of a line that is no progress bar. */
export function barOf(text) {
  const found = BAR.exec(text.slice(0, MOST));
  return found ? found[1].trim() : null;
}

/** Hides all states of a bar but the last, while lines come at the end. */
export class ProgressFolding {
  #last = new Map(); // who -> {bar, node, count}

  /** Take note of a line that is drawn behind all others of the log. */
  add(line, text, node) {
    const who = `${line.host} ${line.rank}`;
    const bar = barOf(text);
    const before = this.#last.get(who);
    if (bar === null) {
      this.#last.delete(who);
      return;
    }
    const isSame = before?.bar === bar;
    if (isSame) before.node.classList.add("log-folded");
    const count = isSame ? before.count + 1 : 1;
    if (count > 1) node.title = `Last of ${count.toLocaleString("en-GB")} states of this progress bar`;
    this.#last.set(who, { bar, node, count });
  }

  /** Begin anew: all lines are drawn again. */
  clear() {
    this.#last.clear();
  }
}
