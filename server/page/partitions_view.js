// The partitions of a topic: their ends, their segments and where they lie, and what holds the disk.

import { get, topicPath } from "./api.js";
import { element } from "./dom.js";
import { amount, count, instant, until } from "./format.js";
import { Table } from "./table.js";

const HOLDERS = ["pending", "worn", "retention", "backlog", "tier", "removable", "pinned", "active"];
const PLACES = [
  ["only_local", "Only here"],
  ["both", "Here and in object storage"],
  ["only_remote", "Only in object storage"],
];

export class PartitionsView {
  constructor({ topic }) {
    this.topic = topic;
    this.nowMs = 0;
    const name = { title: "Partition", head: true, cell: (row) => String(row.partition) };
    const number = (field, title) => ({ title, numeric: true, cell: (row) => count(row[field]) });
    const key = (row) => row.partition;
    this.partitions = new Table({
      caption: "Partitions", empty: "None.", key,
      columns: [
        name,
        number("pending", "Pending"),
        { title: "Next due", numeric: true, cell: (row) => (row.next_due === null ? "–" : instant(row.next_due, until(row.next_due, this.nowMs))) },
        number("due", "Due"),
        number("high_watermark", "High watermark"),
        number("log_start_offset", "Log start"),
        number("log_end_offset", "Log end"),
        number("segments", "Segments"),
        { title: "Size", numeric: true, cell: (row) => amount(row.bytes) },
        number("buckets", "Buckets"),
        { title: "Index", numeric: true, cell: (row) => amount(row.index_bytes) },
      ],
    });
    this.places = new Table({
      caption: "Where segments lie", empty: "None.", key,
      columns: [name, ...PLACES.map(([place, title]) => ({ title, numeric: true, cell: (row) => `${count(row[`${place}_segments`])}, ${amount(row[`${place}_bytes`])}` }))],
    });
    this.held = new Table({
      caption: "What holds the disk", empty: "None.", key,
      columns: [name, ...HOLDERS.map((holder) => ({ title: `${holder[0].toUpperCase()}${holder.slice(1)}`, numeric: true, cell: (row) => amount(row[`held_${holder}_bytes`]) }))],
    });
    this.node = element(
      "div", {},
      element("h2", {}, "Partitions"), this.partitions.node,
      element("h2", {}, "Segments, by where they lie"), this.places.node,
      element("h2", {}, "Bytes on the disk, by what holds them"), this.held.node,
    );
  }

  async load(signal) {
    const answer = await get(topicPath(this.topic, "stats"), {}, signal);
    this.nowMs = answer.now_ms;
    for (const table of [this.partitions, this.places, this.held]) table.show(answer.partitions);
  }
}
