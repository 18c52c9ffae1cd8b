// Who reads a topic: subscriptions with what each has to do, and consumer groups with their lag.

import { get, post, topicPath } from "./api.js";
import { inline } from "./bytes.js";
import { announce, button, element, say } from "./dom.js";
import { count, instant, until } from "./format.js";
import { openRecord } from "./record_dialog.js";
import { may } from "./session.js";
import { Table } from "./table.js";

const GROUPS_SHOWN = 50; // each is asked for by itself, as are
const READ_SHOWN = 10; // subscriptions of which something is leased, and of each
const LEASED_SHOWN = 50;
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
  constructor({ topic, refresh }) {
    this.topic = topic;
    this.refresh = refresh;
    this.switches = new Map();
    const counts = COUNTS.map(([name, title]) => ({ title, numeric: true, cell: (row) => count(row[name]) }));
    this.subscriptions = new Table({
      caption: "Subscriptions",
      empty: "Nobody subscribes.",
      key: (row) => row.name,
      columns: [
        { title: "Subscription", head: true, cell: (row) => row.name },
        { title: "Lag", numeric: true, cell: (row) => count(row.due + row.retrying + row.leased) },
        ...counts,
        { title: "Handing out", cell: (row) => this.#switch(row.paused, row.name) },
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
    this.leased = new Table({
      caption: "With readers",
      empty: "No reader has anything.",
      key: (row) => `${row.subscription} ${row.id}`,
      columns: [
        { title: "Record", head: true, cell: (row) => button(row.id, () => openRecord(topic, row.id, refresh), { class: "link" }) },
        { title: "Subscription", cell: (row) => row.subscription },
        { title: "Leased until", cell: (row) => instant(row.deadline_ms, until(row.deadline_ms, row.now_ms)) },
        { title: "Delivery", numeric: true, cell: (row) => count(row.delivery_count) },
        { title: "Key", cell: (row) => inline(row.key) },
      ],
    });
    const meaning = "Lag is what is due and not acked. Removed: retention took it before it was acked.";
    this.whole = element("div", { class: "tools" });
    this.told = element("p", { class: "quiet", role: "status" });
    this.more = element("p", { class: "quiet", hidden: true }, `The first ${GROUPS_SHOWN} groups are shown.`);
    this.node = element(
      "div", {},
      element("h2", {}, "Subscriptions"), this.whole, this.told, this.subscriptions.node, element("p", { class: "help" }, meaning),
      element("h2", {}, "With readers"), this.leased.node, element("h2", {}, "Consumer groups"), this.groups.node, this.more,
    );
  }

  async load(signal) {
    const [stats, { groups }, { paused }] = await Promise.all([
      get(topicPath(this.topic, "stats"), {}, signal),
      get(topicPath(this.topic, "groups"), {}, signal),
      get(topicPath(this.topic), {}, signal),
    ]);
    this.whole.replaceChildren(this.#switch(paused, null));
    const shown = summed(stats.subscriptions);
    this.subscriptions.show(shown);
    const read = shown.filter((row) => row.leased).slice(0, READ_SHOWN);
    this.leased.show((await Promise.all(read.map(({ name }) => this.#leased(name, signal)))).flat());
    this.groups.show(await Promise.all(groups.slice(0, GROUPS_SHOWN).map((name) => this.#group(name, signal))));
    this.more.hidden = groups.length <= GROUPS_SHOWN;
  }

  // Whether something is handed out, and for who may, the way to change that: of a subscription, or of the topic (null).
  // Kept, and changed in place, for who has the button in focus.
  #switch(paused, subscription) {
    const made = this.switches.get(subscription) ?? this.#made(subscription);
    made.paused = paused;
    say(made.state, subscription === null ? (paused ? "The topic is paused: nothing is handed out." : "") : paused ? "Paused" : "Yes");
    say(made.act, paused ? "Resume" : "Pause");
    made.act.setAttribute("aria-label", `${paused ? "Resume" : "Pause"} ${subscription ?? "the topic"}`);
    return made.node;
  }

  #made(subscription) {
    const made = { paused: false, state: element("span", {}) };
    made.act = button("Pause", () => this.#set(subscription, !made.paused));
    made.act.hidden = !may("manage", this.topic);
    made.node = element("span", { class: "switch" }, made.state, " ", made.act);
    this.switches.set(subscription, made);
    return made;
  }

  async #set(subscription, paused) {
    const whose = subscription ?? this.topic;
    try {
      await post(topicPath(this.topic, paused ? "pause" : "resume"), subscription === null ? {} : { subscription });
      const told = paused ? `${whose} is paused.` : `${whose} goes on.`;
      announce(told);
      say(this.told, told);
    } catch (error) {
      say(this.told, `${error.title} ${error.message}`);
    }
    this.refresh();
  }

  async #leased(subscription, signal) {
    const path = topicPath(this.topic, "subscriptions", encodeURIComponent(subscription), "leased");
    const { leased, now_ms } = await get(path, { limit: LEASED_SHOWN }, signal);
    return leased.map((row) => ({ ...row, subscription, now_ms }));
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
    sum.paused ||= row.paused;
    byName.set(row.subscription, sum);
  }
  return [...byName.values()];
}
