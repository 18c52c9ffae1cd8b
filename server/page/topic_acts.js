// What can be done to a topic as a whole: send to it, purge it, delete it.

import { post, remove, topicPath } from "./api.js";
import { ask } from "./dialogs.js";
import { announce, button, element, field, say } from "./dom.js";
import { count, fromLocalInput } from "./format.js";
import { may } from "./session.js";

export class TopicActs {
  constructor(topic, refresh) {
    this.topic = topic;
    this.refresh = refresh;
    this.told = element("p", { class: "quiet", role: "status" });
    this.send = button("Send a record…", () => this.#send());
    this.purge = button("Purge…", () => this.#purge());
    this.remove = button("Delete the topic…", () => this.#remove());
    this.node = element("div", {}, element("div", { class: "tools" }, this.send, this.purge, this.remove), this.told);
  }

  // What the token may do is known once the server has said so.
  update() {
    this.send.disabled = !may("send", this.topic);
    this.purge.disabled = this.remove.disabled = !may("manage", this.topic);
  }

  async #send() {
    const value = element("textarea", { rows: "5", spellcheck: "false" });
    const key = element("input", { type: "text", autocomplete: "off", spellcheck: "false" });
    const at = element("input", { type: "datetime-local", step: "1" });
    const delay = element("input", { type: "number", min: "0", step: "any" });
    const given = await ask({
      title: `Send a record to ${this.topic}`,
      text: "As soon as possible, unless it is given a time or a delay.",
      action: "Send it",
      fields: [
        field("Value", value), field("Key", key, "Leave it empty for none."), field("Due at", at),
        field("Delay in seconds", delay, "In place of a time."),
      ],
      read: () => ({
        value: value.value,
        ...(key.value ? { key: key.value } : {}),
        ...(delay.value !== "" ? { delay: Number(delay.value) } : {}),
        ...(delay.value === "" && at.value ? { deliver_after: fromLocalInput(at.value) } : {}),
      }),
    });
    if (given) await this.#does(() => post(topicPath(this.topic, "records"), { records: [given] }), ({ ids }) => `${ids[0]} was sent.`);
  }

  async #purge() {
    const pending = element("input", { type: "checkbox" });
    const given = await ask({
      title: `Purge ${this.topic}?`,
      text: "What is due is out of reach then, for all who read the topic.",
      action: "Purge it",
      danger: true,
      fields: [field("What is pending, too", pending)],
      read: () => ({ pending: pending.checked }),
    });
    if (given) await this.#does(() => post(topicPath(this.topic, "purge"), given), ({ removed }) => `${count(removed)} records were purged.`);
  }

  async #remove() {
    const name = element("input", { type: "text", autocomplete: "off", spellcheck: "false" });
    const given = await ask({
      title: `Delete ${this.topic}?`,
      text: "Its records, subscriptions and schedules are deleted with it. This cannot be taken back.",
      action: "Delete the topic",
      danger: true,
      fields: [field("Its name, to be sure", name)],
      read: () => ({ name: name.value.trim() }),
    });
    if (!given) return;
    if (given.name !== this.topic) say(this.told, `Not deleted: the name was not ${this.topic}.`);
    else await this.#does(() => remove(topicPath(this.topic)), () => `${this.topic} is deleted.`, () => { location.hash = "#/"; });
  }

  async #does(act, said, then = this.refresh) {
    try {
      const told = said(await act());
      announce(told);
      say(this.told, told);
    } catch (error) {
      say(this.told, `${error.title} ${error.message}`);
      return;
    }
    then();
  }
}
