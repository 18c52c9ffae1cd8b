// The figures of a topic, or of all of them: what is pending and due, how fast it goes, how late it is.

import { amount, count, instant, rate, span, until } from "./format.js";
import { Counters } from "./rates.js";
import { Tiles } from "./tiles.js";

const TILES = [
  ["pending", "Pending", "Records that are not due yet, and not cancelled"],
  ["next_due", "Next due", "When the next pending record is due"],
  ["due", "Due, in the log", "Records that are due and still in the log, whoever has read them"],
  ["sent", "Sent", "Records appended, per second"],
  ["became_due", "Became due", "Records that came due, per second"],
  ["handed_out", "Handed out", "Records given to the reader that is furthest ahead, per second"],
  ["lateness", "Lateness", "How long after they were due records were handed out, of the last two minutes"],
  ["retrying", "Retrying", "Records that came back, and wait for their retry or for a reader"],
  ["dead", "Dead letters", "Records that failed for good, ever"],
  ["bytes", "In segments", "Bytes of all logs, wherever they lie"],
];
const RATES = ["sent", "became_due", "handed_out"];

const kept = new Map(); // from one part of a topic to the next

export class Figures {
  #counters;
  #tiles = new Tiles("Figures", TILES);

  // name: of the topic, "" for all of them
  constructor(name = "") {
    if (!kept.has(name)) kept.set(name, new Counters());
    this.#counters = kept.get(name);
  }

  get node() {
    return this.#tiles.node;
  }

  // row: a topic's, or the totals, of /v1/overview
  show(row, nowMs, edges) {
    const tiles = this.#tiles;
    this.#counters.add({ ...row, now_ms: nowMs });
    tiles.show("pending", count(row.pending));
    tiles.show("due", count(row.due));
    if (row.next_due === null) tiles.show("next_due", "–");
    else tiles.show("next_due", instant(row.next_due, until(row.next_due, nowMs)));
    for (const name of RATES) {
      tiles.show(name, rate(this.#counters.perSecond(name)), `${count(row[name])} ever`, this.#counters.curve(name));
    }
    this.#showLateness(edges);
    tiles.show("retrying", count(row.retrying), row.leased ? `${count(row.leased)} leased` : "");
    tiles.show("dead", count(row.dead));
    tiles.show("bytes", amount(row.bytes), `${count(row.segments)} ${row.segments === 1 ? "segment" : "segments"}`);
  }

  #showLateness(edges) {
    const half = this.#counters.lateness(0.5, edges);
    const most = this.#counters.lateness(0.99, edges);
    const told = (found) => `${found.beyond ? "> " : "≤ "}${span(found.ms)}`;
    this.#tiles.show("lateness", half ? told(half) : "–", most ? `99 %: ${told(most)}` : "");
  }
}
