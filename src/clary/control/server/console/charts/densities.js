// Histograms of many steps as one grid: a column a step, a row a range of values, a level for how many lie there. Pure.

export const LEVELS = 6;
export const ROWS = 48;
const WIDER = 0.1; // of a value that is the only one: the range that is drawn around it

/**
 * Lay histograms on a grid.
 * Args: items: [{step, buckets: [[left, right, count], ...]}, ...], in order.
 * Returns {range: [least, greatest], columns: [[share of the values by row], ...], peak}; null if there is no value.
 */
export function gridOf(items, rows = ROWS) {
  const range = rangeOf(items);
  if (!range) return null;
  const columns = items.map((item) => sharesOf(item.buckets, range, rows));
  return { range, columns, peak: Math.max(...columns.map((column) => Math.max(...column))) };
}

/** Return the range of values that all histograms lie in; null if there are none, or more than numbers can tell. */
export function rangeOf(items) {
  let least = Infinity;
  let greatest = -Infinity;
  for (const { buckets } of items)
    for (const [left, right] of buckets) {
      if (left < least) least = left;
      if (right > greatest) greatest = right;
    }
  if (!Number.isFinite(greatest - least)) return null;
  if (greatest > least) return [least, greatest];
  const room = Math.abs(least) * WIDER || 0.5;
  return [least - room, least + room];
}

/** Return the level of a share, from 0 for nothing to LEVELS; small shares show as well, or tails would not. */
export function levelOf(share, peak) {
  return share > 0 && peak > 0 ? Math.min(LEVELS, Math.max(1, Math.ceil(Math.sqrt(share / peak) * LEVELS))) : 0;
}

/** Return stretches of a column of one level: [level, first row, row behind the last]. */
export function runsOf(column, peak) {
  const runs = [];
  column.forEach((share, row) => {
    const level = levelOf(share, peak);
    const last = runs.at(-1);
    if (last && last[0] === level && last[2] === row) last[2] = row + 1;
    else if (level) runs.push([level, row, row + 1]);
  });
  return runs;
}

/** Return {count, least, middle, greatest} of a histogram; null if it holds nothing. */
export function summaryOf(buckets) {
  const count = buckets.reduce((sum, bucket) => sum + bucket[2], 0);
  if (!(count > 0)) return null;
  let left = count / 2;
  let middle = buckets[0][0];
  for (const [from, to, inside] of buckets) {
    if (inside >= left) {
      middle = from + (to - from) * (left / inside);
      break;
    }
    left -= inside;
  }
  return { count, least: buckets[0][0], middle, greatest: Math.max(...buckets.map((bucket) => bucket[1])) };
}

function sharesOf(buckets, [least, greatest], rows) {
  const shares = new Array(rows).fill(0);
  const height = (greatest - least) / rows;
  const total = buckets.reduce((sum, bucket) => sum + bucket[2], 0);
  const rowOf = (value) => Math.min(rows - 1, Math.max(0, Math.floor((value - least) / height)));
  for (const [left, right, count] of buckets) {
    const share = count / total;
    if (!(share > 0)) continue;
    const first = rowOf(left);
    const last = rowOf(right);
    // Values are taken to lie evenly in their bucket.
    for (let row = first; row <= last; row++) {
      const from = Math.max(left, least + row * height);
      const to = Math.min(right, least + (row + 1) * height);
      shares[row] += right > left ? (share * Math.max(0, to - from)) / (right - left) : share;
    }
  }
  return shares;
}
