// One record: what it is, what is in it, and, while it is pending, cancel and reschedule.

import { get, post, topicPath } from "./api.js";
import { asHex, asJson, bytesOf, inline } from "./bytes.js";
import { ask, modal } from "./dialogs.js";
import { announce, button, element, field } from "./dom.js";
import { amount, fromLocalInput, instant, localInput, moment, relative, utc } from "./format.js";
import { may } from "./session.js";

const HOUR_MS = 3_600_000;
const CANCELLED = {
  CANCELLED: "is cancelled: it will not be delivered.",
  ALREADY_CANCELLED: "had been cancelled already.",
  ALREADY_DELIVERED: "is due already: it was too late to cancel it.",
  UNKNOWN: "is not in the log any more.",
};

// changed(): something was done to it.
export async function openRecord(topic, id, changed) {
  const answer = await get(topicPath(topic, "record"), { id });
  new RecordDialog(topic, answer, changed);
}

class RecordDialog {
  constructor(topic, { record, state, now_ms: nowMs }, changed) {
    this.topic = topic;
    this.record = record;
    this.state = state;
    this.changed = changed;
    const content = element("div", { class: "record" }, this.#facts(nowMs), this.#headers(), this.#value(), this.#actions());
    this.dialog = modal(`Record ${record.id}`, content, { wide: true });
  }

  #facts(nowMs) {
    const record = this.record;
    const states = { pending: "pending", due: "due", cancelled: "cancelled" };
    const at = (ms) => element("span", {}, instant(ms), element("small", {}, ` ${utc(ms)}`));
    const rows = [
      ["State", states[this.state] ?? this.state],
      ["Due", element("span", {}, at(record.due), `, ${relative(record.due, nowMs)}`)],
      ...(record.deliver_after === record.due ? [] : [["Asked for", at(record.deliver_after)]]),
      ["Key", inline(record.key)],
      ["Sent", at(record.timestamp)],
      ...(record.broker_timestamp < 0 ? [] : [["Appended", at(record.broker_timestamp)]]),
      ["Partition, offset", `${record.partition}, ${record.offset}`],
    ];
    const list = rows.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, value)]);
    return element("dl", { class: "facts-of-record" }, ...list);
  }

  #headers() {
    if (!this.record.headers.length) return null;
    const heads = ["Header", "Value"].map((title) => element("th", { scope: "col" }, title));
    const lines = this.record.headers.map(([name, value]) =>
      element("tr", {}, element("th", { scope: "row" }, name), element("td", {}, inline(value))),
    );
    const table = element("table", {}, element("thead", {}, element("tr", {}, ...heads)), element("tbody", {}, ...lines));
    return element("div", { class: "table" }, table);
  }

  #value() {
    const found = bytesOf(this.record.value);
    if (found === null) return element("p", { class: "quiet" }, "It has no value.");
    const json = asJson(found);
    const shapes = { Text: found.text, JSON: json, Hex: asHex(found) };
    const shown = element("pre", { tabindex: "0", "aria-label": "Value" });
    const choices = Object.entries(shapes).map(([name, text]) => {
      const choose = () => {
        shown.textContent = text;
        choices.forEach((each) => each.setAttribute("aria-pressed", String(each.textContent === name)));
      };
      return button(name, choose, { "aria-pressed": "false", disabled: text === null });
    });
    const first = json !== null && typeof JSON.parse(found.text) === "object" ? 1 : found.text === null ? 2 : 0;
    choices[first].click();
    const size = element("span", { class: "quiet" }, amount(found.bytes.length));
    return element("div", {}, element("div", { class: "tools", role: "group", "aria-label": "Shown as" }, ...choices, size), shown);
  }

  #actions() {
    const close = button("Close", () => this.dialog.close(), { class: "primary" });
    if (this.state !== "pending") return element("div", { class: "actions" }, close);
    const allowed = may("send", this.topic);
    const cancel = button("Cancel it…", () => this.#cancel(), { class: "danger", disabled: !allowed });
    const reschedule = button("Reschedule…", () => this.#reschedule(), { disabled: !allowed });
    const why = allowed ? null : element("span", { class: "quiet" }, "Your token may not send to this topic.");
    return element("div", { class: "actions" }, why, reschedule, cancel, close);
  }

  async #cancel() {
    const text = `${this.record.id}, due ${moment(this.record.due)}, will never be delivered. This cannot be taken back.`;
    if (!(await ask({ title: "Cancel this record?", text, action: "Cancel the record", danger: true }))) return;
    await this.#do(async () => {
      const answer = await post(topicPath(this.topic, "cancel"), { ids: [this.record.id] });
      return `${this.record.id} ${CANCELLED[answer.results[0]] ?? answer.results[0]}`;
    });
  }

  async #reschedule() {
    const input = element("input", {
      type: "datetime-local", step: "1", required: true, value: localInput(Math.max(this.record.due, Date.now()) + HOUR_MS),
    });
    const given = await ask({
      title: "Reschedule this record",
      text: `${this.record.id} is due ${moment(this.record.due)}. It gets another time, and with it another id.`,
      action: "Reschedule",
      fields: [field("Due at, in your time zone", input, `Your zone is ${Intl.DateTimeFormat().resolvedOptions().timeZone}.`)],
      read: () => fromLocalInput(input.value),
    });
    if (given === null) return;
    await this.#do(async () => {
      const answer = await post(topicPath(this.topic, "reschedule"), { id: this.record.id, deliver_after: given });
      return `Rescheduled to ${moment(given)}. Its id is now ${answer.id}.`;
    });
  }

  async #do(action) {
    let told;
    try {
      told = await action();
    } catch (error) {
      this.dialog.querySelector(".alert")?.remove();
      this.dialog.append(element("p", { class: "alert", role: "alert" }, `${error.title ?? ""} ${error.message}`.trim()));
      return;
    }
    this.dialog.close();
    announce(told);
    this.changed(told);
  }
}
