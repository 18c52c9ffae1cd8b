// Asked again and again, while somebody looks: not in a hidden tab, not while paused, more slowly where it fails.

const EVERY_MS = 2_000;
const SLOWEST_MS = 30_000;

export class Poller {
  #work;
  #tell;
  #timer = 0;
  #asking = null;
  #failures = 0;
  #stopped = false;
  paused = false;

  // work(signal): a promise. tell(error or null, ms until it is asked again).
  constructor(work, tell) {
    this.#work = work;
    this.#tell = tell;
    document.addEventListener("visibilitychange", this.#seen);
  }

  stop() {
    this.#stopped = true;
    document.removeEventListener("visibilitychange", this.#seen);
    clearTimeout(this.#timer);
    this.#asking?.abort();
  }

  // At once, and what is under way is dropped.
  async now() {
    clearTimeout(this.#timer);
    this.#asking?.abort();
    if (this.#stopped) return;
    const asking = (this.#asking = new AbortController());
    let failure = null;
    try {
      await this.#work(asking.signal);
    } catch (error) {
      failure = error;
    }
    if (asking.signal.aborted || this.#stopped) return;
    this.#asking = null;
    this.#failures = failure ? this.#failures + 1 : 0;
    const waitMs = Math.min(EVERY_MS * 2 ** this.#failures, SLOWEST_MS);
    this.#tell(failure, waitMs);
    if (!this.paused && !document.hidden) this.#timer = setTimeout(() => this.now(), waitMs);
  }

  pause(paused) {
    this.paused = paused;
    clearTimeout(this.#timer);
    if (!paused) this.now();
  }

  #seen = () => {
    clearTimeout(this.#timer);
    if (!document.hidden && !this.paused) this.now();
  };
}
