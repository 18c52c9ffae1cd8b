// Records that are pending, or due: found by key, by time, or by id; a page at a time.

import { get, topicPath } from "./api.js";
import { inline } from "./bytes.js";
import { button, element, field, say } from "./dom.js";
import { amount, count, fromLocalInput, instant, localInput, moment } from "./format.js";
import { openRecord } from "./record_dialog.js";
import { topicLink } from "./route.js";
import { Table } from "./table.js";

const PAGE_ROWS = 50;

export class RecordsView {
  constructor({ topic, parameters, refresh }) {
    this.topic = topic;
    this.refresh = refresh;
    this.state = parameters.get("state") === "due" ? "due" : "pending";
    this.from = parameters.get("from") ? Number(parameters.get("from")) : null;
    this.key = parameters.get("key") ?? "";
    this.partition = parameters.get("partition") ?? "";
    this.behind = []; // where each page but the first began
    this.wanted = true;
    this.table = new Table({
      caption: "Records",
      empty: "No such record.",
      key: (row) => row.id,
      columns: [
        { title: "Id", head: true, cell: (row) => this.#opener(row.id) },
        { title: "Due", cell: (row) => instant(row.due) },
        { title: "Key", cell: (row) => inline(row.key) },
        { title: "Value", cell: (row) => element("span", { class: "preview" }, inline(row.value)) },
        { title: "Size", numeric: true, cell: (row) => amount(row.value_bytes) },
      ],
    });
    this.told = element("p", { class: "quiet", role: "status" });
    this.done = element("p", { class: "done", tabindex: "-1", hidden: true });
    this.node = element("div", {}, element("h2", {}, "Records"), this.#byId(), this.#search(), this.done, this.told, this.table.node, this.#pages());
  }

  #byId() {
    const input = element("input", { type: "text", placeholder: `${this.topic}-0@0`, autocomplete: "off", spellcheck: "false" });
    const form = element("form", { class: "search" }, field("Id", input), element("button", { type: "submit" }, "Open"));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (input.value.trim()) this.#open(input.value.trim());
    });
    return form;
  }

  #search() {
    const option = (value, text) => element("option", { value, selected: value === this.state }, text);
    const state = element("select", {}, option("pending", "pending"), option("due", "due"));
    const key = element("input", { type: "text", value: this.key, autocomplete: "off", spellcheck: "false" });
    const from = element("input", { type: "datetime-local", step: "1", value: this.from === null ? "" : localInput(this.from) });
    const partition = element("input", { type: "number", min: "0", value: this.partition });
    const form = element(
      "form", { class: "search", role: "search" },
      field("State", state), field("Key", key), field("Due from", from), field("Partition", partition),
      element("button", { type: "submit", class: "primary" }, "Find"),
    );
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      const unchanged = this.from !== null && from.value === localInput(this.from); // which shows no milliseconds
      const asked = { state: state.value, key: key.value, from: unchanged ? this.from : fromLocalInput(from.value), partition: partition.value };
      this.#find(asked);
    });
    return form;
  }

  #find(asked) {
    Object.assign(this, asked);
    this.behind = [];
    history.replaceState(null, "", topicLink(this.topic, "records", asked));
    this.#again();
  }

  #pages() {
    this.first = button("First page", () => this.#turn([]));
    this.before = button("Previous page", () => this.#turn(this.behind.slice(0, -1)));
    this.after = button("Next page", () => this.#turn([...this.behind, this.next]));
    return element("nav", { class: "pages", "aria-label": "Pages of records" }, this.first, this.before, this.after);
  }

  #turn(behind) {
    this.behind = behind;
    this.#again();
  }

  #again() {
    this.wanted = true;
    this.refresh();
  }

  #opener(id) {
    return button(id, () => this.#open(id), { class: "link" });
  }

  async #open(id) {
    this.done.hidden = true;
    try {
      await openRecord(this.topic, id, (told) => this.#changed(told));
    } catch (error) {
      this.done.hidden = false;
      say(this.done, error.message);
      this.done.focus();
    }
  }

  #changed(told) {
    this.done.hidden = false;
    say(this.done, told);
    this.done.focus(); // what was pressed may be gone with its row
    this.#again();
  }

  // A list is asked for again with each look; a search by key, which reads records, only when it is wanted.
  async load(signal) {
    if (this.key && !this.wanted) return;
    const { state, key, partition, from } = this;
    const asked = { state, key, partition, from, limit: PAGE_ROWS };
    let after = this.behind.at(-1) ?? "";
    const found = { records: [], looked_at: 0 };
    do {
      const answer = await get(topicPath(this.topic, "find"), { ...asked, after, limit: PAGE_ROWS - found.records.length }, signal);
      after = answer.after;
      found.records.push(...answer.records);
      found.looked_at += answer.looked_at;
      this.#show(found, after);
    } while (key && after && found.records.length < PAGE_ROWS);
    this.wanted = false;
  }

  #show(found, after) {
    this.next = after;
    this.table.show(found.records);
    say(this.told, this.#found(found));
    this.first.disabled = this.before.disabled = !this.behind.length;
    this.after.disabled = !after;
  }

  #found(answer) {
    const which = this.key ? ` of key ${this.key}` : "";
    const since = this.from === null ? "" : ` from ${moment(this.from)} on`;
    const looked = this.key ? `, of ${count(answer.looked_at)} that were looked at` : "";
    return `${count(answer.records.length)} ${this.state}${which}${since}, in the order in which they are due${looked}.`;
  }
}
