// Who reads a topic: subscriptions with what each has to do, and consumer groups with their lag.

import { get, topicPath } from "./api.js";
import { element } from "./dom.js";
import { count } from "./format.js";
import { Table } from "./table.js";

const GROUPS_SHOWN = 50; // each is asked for by itself
const COUNTS = [
  ["due", "Due"],
  ["leased", "Leased"],
  ["retrying", "Retrying"],
  ["pending", "Pending"],
  ["acked", "Acked"],
  ["dead", "Dead"],
  ["redelivered", "Redelivered"],
  ["lapsed", "Expired unread"],
  ["removed", "Removed"],
];

export class SubscriptionsView {
  constructor({ topic }) {
    this.topic = topic;
    const counts = COUNTS.map(([name, title]) => ({ title, numeric: true, cell: (row) => count(row[name]) }));
    this.subscriptions = new Table({
      caption: "Subscriptions",
      empty: "Nobody subscribes.",
      key: (row) => row.name,
      columns: [
        { title: "Subscription", head: true, cell: (row) => row.name },
        { title: "Lag", numeric: true, cell: (row) => count(row.due + row.retrying + row.leased) },
        ...counts,
      ],
    });
    this.groups = new Table({
      caption: "Consumer groups",
      empty: "No group has committed.",
      key: (row) => row.name,
      columns: [
        { title: "Group", head: true, cell: (row) => row.name },
        { title: "Lag", numeric: true, cell: (row) => count(row.lag) },
      ],
    });
    const meaning = "Lag is what is due and not acked. Removed: retention took it before it was acked.";
    this.more = element("p", { class: "quiet", hidden: true }, `The first ${GROUPS_SHOWN} groups are shown.`);
    this.node = element(
      "div", {},
      element("h2", {}, "Subscriptions"), this.subscriptions.node, element("p", { class: "help" }, meaning),
      element("h2", {}, "Consumer groups"), this.groups.node, this.more,
    );
  }

  async load(signal) {
    const [stats, { groups }] = await Promise.all([
      get(topicPath(this.topic, "stats"), {}, signal),
      get(topicPath(this.topic, "groups"), {}, signal),
    ]);
    this.subscriptions.show(summed(stats.subscriptions));
    this.groups.show(await Promise.all(groups.slice(0, GROUPS_SHOWN).map((name) => this.#group(name, signal))));
    this.more.hidden = groups.length <= GROUPS_SHOWN;
  }

  async #group(name, signal) {
    return { name, ...(await get(topicPath(this.topic, "groups", encodeURIComponent(name)), {}, signal)) };
  }
}

// One row for each subscription, of a row for each of its partitions.
function summed(rows) {
  const byName = new Map();
  for (const row of rows) {
    const sum = byName.get(row.subscription) ?? { name: row.subscription, ...Object.fromEntries(COUNTS.map(([name]) => [name, 0])) };
    for (const [name] of COUNTS) sum[name] += row[name];
    byName.set(row.subscription, sum);
  }
  return [...byName.values()];
}
