// Timers with names: under one name, the newest wins.

/** The longest that a timer can wait, in milliseconds. */
const longestMs = 2 ** 31 - 1;

/** Named timers that can be stopped all at once. */
export class Timers {
  #running = new Map<string, ReturnType<typeof setTimeout>>();

  /** Does something after some milliseconds, instead of what waits under the name. */
  set(name: string, ms: number, what: () => void): void {
    this.cancel(name);
    const run = () => {
      this.#running.delete(name);
      what();
    };
    this.#running.set(name, setTimeout(run, Math.min(Math.max(0, ms), longestMs)));
  }

  /** Whether something waits under the name. */
  has(name: string): boolean {
    return this.#running.has(name);
  }

  cancel(name: string): void {
    clearTimeout(this.#running.get(name));
    this.#running.delete(name);
  }

  clear(): void {
    for (const timer of this.#running.values()) clearTimeout(timer);
    this.#running.clear();
  }
}
