// What failed for good and was sent to this topic, and the way back.

import { get, post, topicPath } from "./api.js";
import { inline } from "./bytes.js";
import { ask } from "./dialogs.js";
import { announce, button, element, field, say } from "./dom.js";
import { count, instant } from "./format.js";
import { openRecord } from "./record_dialog.js";
import { may } from "./session.js";
import { Table } from "./table.js";

const SHOWN = 100;

export class DeadLettersView {
  constructor({ topic, refresh }) {
    this.topic = topic;
    this.refresh = refresh;
    this.table = new Table({
      caption: "Dead letters",
      empty: "Nothing here failed for good, or all of it was sent back.",
      key: (row) => row.message.id,
      columns: [
        { title: "Id", head: true, cell: ({ message }) => button(message.id, () => openRecord(topic, message.id, refresh), { class: "link" }) },
        { title: "Came from", cell: ({ origin }) => origin?.record ?? "–" },
        { title: "Subscription", cell: ({ origin }) => origin?.subscription ?? "–" },
        { title: "Failures", numeric: true, cell: ({ origin }) => count(origin?.redelivery_count) },
        { title: "Reason", cell: ({ origin }) => element("span", { class: "preview" }, origin?.reason ?? "–") },
        { title: "Since", cell: ({ message }) => instant(message.broker_timestamp) },
        { title: "Key", cell: ({ message }) => inline(message.key) },
      ],
    });
    this.redrive = button("Send back…", () => this.#redrive(), { disabled: true });
    this.told = element("p", { class: "quiet", role: "status" });
    const allowed = may("manage", topic) ? null : element("p", { class: "quiet" }, "Your token may not manage this topic.");
    const meaning = "Of a topic that subscriptions name as their dead-letter topic. Sent back, a record is due at once where it came from.";
    this.node = element(
      "div", {},
      element("h2", {}, "Dead letters"), element("p", { class: "help" }, meaning),
      element("div", { class: "tools" }, this.redrive), allowed, this.told, this.table.node,
    );
  }

  async load(signal) {
    const answer = await get(topicPath(this.topic, "dead-letters"), { limit: SHOWN }, signal);
    this.table.show(answer.dead_letters);
    this.redrive.disabled = !answer.dead_letters.length || !may("manage", this.topic);
  }

  async #redrive() {
    const limit = element("input", { type: "number", min: "1", value: "" });
    const given = await ask({
      title: "Send dead letters back?",
      text: `Records of ${this.topic} go back to the topics that they came from, oldest first, and are due there at once.`,
      action: "Send them back",
      danger: true,
      fields: [field("At most", limit, "Leave it empty for all of them.")],
      read: () => ({ limit: limit.value === "" ? null : Number(limit.value) }),
    });
    if (!given) return;
    try {
      const answer = await post(topicPath(this.topic, "redrive"), given.limit === null ? {} : given);
      const told = `${count(answer.redriven)} ${answer.redriven === 1 ? "record was" : "records were"} sent back.`;
      announce(told);
      say(this.told, told);
    } catch (error) {
      say(this.told, `${error.title} ${error.message}`);
    }
    this.refresh();
  }
}
