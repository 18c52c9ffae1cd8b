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
        { title: "Came from", cell: ({ origin }) => element("span", {}, origin?.record ?? "–", element("small", {}, ` by ${origin?.subscription ?? "–"}`)) },
        { title: "Failures", numeric: true, cell: ({ origin }) => count(origin?.redelivery_count) },
        { title: "Reason", cell: ({ origin }) => short(origin?.reason ?? "–") },
        { title: "Since", cell: ({ message }) => instant(message.broker_timestamp) },
        { title: "Key", cell: ({ message }) => inline(message.key) },
        { title: "Value", cell: ({ message }) => short(inline(message.value)) },
        { title: "This one", cell: (letter) => this.#acts(letter) },
      ],
    });
    this.redrive = button("Send back…", () => this.#redrive(), { disabled: true });
    this.discard = button("Discard…", () => this.#discard(), { disabled: true });
    this.reason = element("input", { type: "search", autocomplete: "off", spellcheck: "false" });
    this.reason.addEventListener("change", () => this.refresh());
    this.reasons = element("p", { class: "quiet" });
    this.told = element("p", { class: "quiet", role: "status" });
    const allowed = may("manage", topic) ? null : element("p", { class: "quiet" }, "Your token may not manage this topic.");
    const meaning = "Of a topic that subscriptions name as their dead-letter topic. Sent back, a record is due at once where it came from.";
    this.node = element(
      "div", {},
      element("h2", {}, "Dead letters"), element("p", { class: "help" }, meaning),
      element("div", { class: "tools" }, field("Reason has", this.reason), this.redrive, this.discard),
      allowed, this.told, this.reasons, this.table.node,
    );
  }

  async load(signal) {
    const answer = await get(topicPath(this.topic, "dead-letters"), { limit: SHOWN, ...this.#which() }, signal);
    this.table.show(answer.dead_letters);
    this.redrive.disabled = this.discard.disabled = !answer.dead_letters.length || !may("manage", this.topic);
    this.reasons.textContent = counted(answer.dead_letters.map(({ origin }) => origin?.reason ?? "–"));
  }

  // Those that are shown, and those like them beyond.
  #which() {
    const reason = this.reason.value.trim();
    return reason ? { reason } : {};
  }

  #acts(letter) {
    if (!may("manage", this.topic)) return "–";
    const { id } = letter.message;
    return element(
      "span", { class: "acts" },
      button("Send back…", () => this.#sendBack(letter), { class: "link", "aria-label": `Send ${id} back` }), " ",
      button("Discard…", () => this.#discard(id), { class: "link", "aria-label": `Discard ${id}` }),
    );
  }

  async #sendBack({ message, origin }) {
    const isText = typeof message.value === "string";
    const value = element("textarea", { rows: "6", spellcheck: "false" });
    value.value = isText ? message.value : "";
    const given = await ask({
      title: `Send ${message.id} back?`,
      text: `It goes back to where ${origin.record} was, and is due there at once.`,
      action: "Send it back",
      danger: true,
      fields: isText ? [field("Value", value, "As it was, or another one.")] : [],
      read: () => (isText && value.value !== message.value ? { value: value.value } : {}),
    });
    if (given) await this.#post("redrive", { records: [message.id], ...given }, ({ redriven, left }) =>
      redriven ? `${message.id} was sent back.` : `${message.id} stays: ${Object.keys(left)[0] ?? "it is gone"}.`);
  }

  async #discard(id = null) {
    const given = await ask({
      title: id === null ? "Discard dead letters?" : `Discard ${id}?`,
      text: id === null ? `All dead letters of ${this.topic} ${this.#described()}are let go: nobody sees them again.` : "It is let go: nobody sees it again.",
      action: id === null ? "Discard them" : "Discard it",
      danger: true,
    });
    if (given) await this.#post("discard-dead-letters", id === null ? this.#which() : { records: [id] }, ({ discarded }) =>
      `${count(discarded)} ${discarded === 1 ? "dead letter was" : "dead letters were"} let go.`);
  }

  #described() {
    const { reason } = this.#which();
    return reason ? `whose reason has “${reason}” ` : "";
  }

  async #post(path, body, said) {
    try {
      const told = said(await post(topicPath(this.topic, path), body));
      announce(told);
      say(this.told, told);
    } catch (error) {
      say(this.told, `${error.title} ${error.message}`);
    }
    this.refresh();
  }

  async #redrive() {
    const limit = element("input", { type: "number", min: "1", value: "" });
    const given = await ask({
      title: "Send dead letters back?",
      text: `Records of ${this.topic} ${this.#described()}go back to the topics that they came from, oldest first, and are due there at once.`,
      action: "Send them back",
      danger: true,
      fields: [field("At most", limit, "Leave it empty for all of them.")],
      read: () => ({ limit: limit.value === "" ? null : Number(limit.value) }),
    });
    if (!given) return;
    await this.#post("redrive", { ...this.#which(), ...(given.limit === null ? {} : given) }, ({ redriven }) =>
      `${count(redriven)} ${redriven === 1 ? "record was" : "records were"} sent back.`);
  }
}

// One line, and all of it where the pointer rests.
function short(text) {
  return element("span", { class: "preview short", title: text }, text);
}

// The reasons of those that are shown, the most frequent first.
function counted(reasons) {
  const times = new Map();
  for (const reason of reasons) times.set(reason, (times.get(reason) ?? 0) + 1);
  const most = [...times].sort(([, less], [, more]) => more - less).slice(0, 5);
  return reasons.length > 1 ? most.map(([reason, number]) => `${count(number)} × ${reason.slice(0, 80)}`).join(" · ") : "";
}
