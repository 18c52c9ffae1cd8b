// Rates and lateness, from counters that only grow, as they were polled; a restart of the server begins anew.

const KEPT_MS = 120_000;

export class Counters {
  #samples = [];

  // counts: { now_ms, sent, became_due, handed_out, lateness_up_to }
  add(counts) {
    const last = this.#samples.at(-1);
    if (last && (counts.handed_out < last.handed_out || counts.sent < last.sent)) this.#samples = [];
    if (!last || counts.now_ms > last.now_ms) this.#samples.push(counts);
    while (this.#samples.length > 2 && this.#samples[0].now_ms < counts.now_ms - KEPT_MS) this.#samples.shift();
  }

  // Per second over the last 10 s or so; null until there are two samples.
  perSecond(name) {
    const last = this.#samples.at(-1);
    const before = this.#samples.findLast((each) => each.now_ms <= last.now_ms - 9_000) ?? this.#samples[0];
    if (!last || before === last) return null;
    return (1_000 * (last[name] - before[name])) / (last.now_ms - before.now_ms);
  }

  // Between each sample and the next, for a small curve.
  curve(name) {
    return this.#samples.slice(1).map((each, row) => {
      const before = this.#samples[row];
      return Math.max(0, (1_000 * (each[name] - before[name])) / (each.now_ms - before.now_ms));
    });
  }

  // The edge below which so much of what was handed out lately lay: { ms, beyond } or null where nothing was.
  lateness(share, edges) {
    const last = this.#samples.at(-1)?.lateness_up_to ?? [];
    const first = this.#samples[0]?.lateness_up_to ?? [];
    const counts = last.map((number, row) => number - (this.#samples.length > 1 ? (first[row] ?? 0) : 0));
    const total = counts.at(-1) ?? 0;
    if (!total) return null;
    const row = counts.findIndex((number) => number >= share * total);
    return row < edges.length ? { ms: edges[row], beyond: false } : { ms: edges.at(-1), beyond: true };
  }
}
