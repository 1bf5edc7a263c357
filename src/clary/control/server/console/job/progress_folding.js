// Lines of progress bars, as tqdm prints them: of many states of one bar the last is shown.

// `train:  10%|#  | 1/10 [00:01<`, and of a bar that knows no total `train: 123it [00:01, `.
const BAR = /^([^|]*?)(\d{1,3})%\|[^|]*\|\s*[\d.,kMGT]+\/[\d.,kMGT]+ \[/;
const COUNTER = /^(?:([^|[]*?): ?)?([\d.]+)([kMGTP]?) ?([^\d\s[][^\s[]*) \[\d+:\d{2}/;
const SCALES = { "": 1, k: 1e3, M: 1e6, G: 1e9, T: 1e12, P: 1e15 };
const MOST = 1000; // characters of a line that are looked at: bars are as wide as a terminal

/**
 * Return `{bar, made, end}`: what one bar's lines have in common, how far it is, and where it ends in the line; null of
 * a line that is no bar.
 */
export function barOf(text) {
  const begin = text.slice(0, MOST);
  const found = BAR.exec(begin);
  if (found) return { bar: found[1].trim(), made: Number(found[2]), end: endOf(text, found[0].length - 1) };
  const counted = COUNTER.exec(begin);
  if (!counted) return null;
  const [whole, name = "", amount, scale, unit] = counted;
  const end = endOf(text, whole.lastIndexOf("["));
  return { bar: `${name.trim()} ${unit}`, made: Number(amount) * SCALES[scale], end };
}

/**
 * Return where what a program has printed begins behind a bar in the same line; 0 if nothing stands behind one.
 * A bar ends no line of its own until it is full: whatever is printed meanwhile comes to stand behind it.
 */
export function behindBar(text) {
  const end = barOf(text)?.end ?? 0;
  return text.slice(end).trim() ? end : 0;
}

/** Return the place behind the bracket that closes the one at `begin`. */
function endOf(text, begin) {
  let depth = 0;
  for (let at = begin; at < text.length; at++) {
    if (text[at] === "[") depth++;
    else if (text[at] === "]" && --depth === 0) return at + 1;
  }
  return text.length;
}

/**
 * Hides all states of a bar but the last, whatever was printed between, while lines come at the end.
 * A bar that falls back has begun anew: the one before, of another epoch say, keeps its last state.
 * Of a line with a bar and something else the bar alone is hidden (class `bar-part`).
 */
export class ProgressFolding {
  #last = new Map(); // who and bar -> {made, node, count, isAlone}

  /** Take note of a line that is drawn behind all others of the log. */
  add(line, text, node) {
    const found = barOf(text);
    if (found === null) return;
    const who = JSON.stringify([line.host, line.rank, found.bar]);
    const before = this.#last.get(who);
    const isSame = before !== undefined && before.made <= found.made;
    if (isSame) before.node.classList.add(before.isAlone ? "log-folded" : "log-unbarred");
    if (isSame) before.node.removeAttribute("title");
    const count = isSame ? before.count + 1 : 1;
    if (count > 1) node.title = `Last of ${count.toLocaleString("en-GB")} states of this progress bar`;
    this.#last.set(who, { made: found.made, node, count, isAlone: !behindBar(text) });
  }

  /** Begin anew: all lines are drawn again. */
  clear() {
    this.#last.clear();
  }
}
