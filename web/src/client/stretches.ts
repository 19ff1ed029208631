// Stretches of a log that are held completely, in rising order and apart from
// each other. The newest one ends at have.

/** All that may be seen of from..to is here, both included. Empty if to is from - 1, which marks a place all the same. */
export interface Stretch {
  from: number;
  to: number;
}

/** Adds a stretch and joins those that it touches. */
export function union(stretches: readonly Stretch[], added: Stretch): Stretch[] {
  const { from, to } = added;
  const below = stretches.filter((s) => s.to + 1 < from);
  const above = stretches.filter((s) => s.from > to + 1);
  const touched = stretches.filter((s) => s.to + 1 >= from && s.from <= to + 1);
  const joined = touched.reduce((j, s) => ({ from: Math.min(j.from, s.from), to: Math.max(j.to, s.to) }), added);
  return [...below, joined, ...above];
}

/** Cuts off what lies at or below a seq; the newest stretch stays, be it empty. */
export function cutBelow(stretches: readonly Stretch[], seq: number, have: number): Stretch[] {
  return stretches
    .filter((s) => s.to > seq || s.to >= have)
    .map((s) => ({ from: Math.max(s.from, seq + 1), to: s.to }));
}

/** What lies between the stretches at or above a floor, both ends included. */
export function gapsBetween(stretches: readonly Stretch[], floor: number): Stretch[] {
  const gaps: Stretch[] = [];
  for (let i = 1; i < stretches.length; i++) {
    const gap = { from: Math.max(stretches[i - 1]!.to + 1, floor), to: stretches[i]!.from - 1 };
    if (gap.from <= gap.to) gaps.push(gap);
  }
  return gaps;
}
