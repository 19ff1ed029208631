// How long to wait before the next attempt to connect.

/** The first wait is drawn from 0 to this many milliseconds. */
export const backoffBaseMs = 500;
/** No wait is longer than this many milliseconds, unless the server asks for it. */
export const backoffCapMs = 30_000;

/**
 * Full jitter: a random wait in milliseconds from 0 to min(cap, base x 2^attempt).
 * attempt counts from 0; random returns numbers in [0, 1).
 */
export function backoff(attempt: number, random: () => number = Math.random): number {
  const ceiling = Math.min(backoffCapMs, backoffBaseMs * 2 ** Math.min(attempt, 16));
  return Math.floor(random() * ceiling);
}
