// All topics: the figures of the whole store, and a list that is filtered, ordered and cut into pages by the server.

import { get, post } from "./api.js";
import { ask } from "./dialogs.js";
import { announce, button, element, field, say } from "./dom.js";
import { Figures } from "./figures.js";
import { amount, count, instant, until } from "./format.js";
import { topicLink, urlOf } from "./route.js";
import { may } from "./session.js";
import { Table } from "./table.js";

const PAGE_ROWS = 50;

export class TopicsView {
  title = "Topics";

  constructor({ route, refresh }) {
    this.refresh = refresh;
    this.asked = {
      filter: route.parameters.get("filter") ?? "",
      sort: route.parameters.get("sort") ?? "name",
      descending: route.parameters.get("descending") === "1",
      offset: Number(route.parameters.get("offset")) || 0,
    };
    this.figures = new Figures();
    this.nowMs = 0;
    this.table = new Table({
      caption: "Topics",
      empty: "No topic matches.",
      key: (row) => row.topic,
      sorted: (name) => this.#sort(name),
      columns: this.#columns(),
    });
    this.node = element("div", {}, element("h1", {}, "Topics"), this.figures.node, this.#search(), this.#tools(), this.table.node, this.#pages());
  }

  #columns() {
    const number = (name, title) => ({ title, numeric: true, sort: name, cell: (row) => count(row[name]) });
    return [
      { title: "Topic", head: true, sort: "name", cell: (row) => this.#named(row) },
      number("pending", "Pending"),
      { title: "Next due", numeric: true, sort: "next_due", cell: (row) => this.#nextDue(row) },
      number("due", "Due"),
      number("lag", "Lag"),
      number("retrying", "Retrying"),
      number("dead", "Dead"),
      number("sent", "Sent ever"),
      { title: "Size", numeric: true, sort: "bytes", cell: (row) => amount(row.bytes) },
    ];
  }

  #named(row) {
    const link = element("a", { href: topicLink(row.topic) }, row.topic);
    const notes = [];
    if (row.partitions > 1) notes.push(`${row.partitions} partitions`);
    if (!row.delayed) notes.push("FIFO");
    if (row.paused) notes.push("paused");
    if (row.unreadable) notes.push("cannot be read: see the server's log");
    return element("span", {}, link, notes.length ? element("small", {}, ` ${notes.join(", ")}`) : null);
  }

  #nextDue(row) {
    return row.next_due === null ? "–" : instant(row.next_due, until(row.next_due, this.nowMs));
  }

  #search() {
    const input = element("input", { type: "search", value: this.asked.filter, autocomplete: "off", spellcheck: "false" });
    let typing = 0;
    input.addEventListener("input", () => {
      clearTimeout(typing);
      typing = setTimeout(() => this.#change({ filter: input.value.trim(), offset: 0 }), 200);
    });
    this.found = element("p", { class: "quiet", role: "status" });
    const form = element("form", { class: "search", role: "search" }, field("Filter topics", input), this.found);
    form.addEventListener("submit", (event) => event.preventDefault());
    return form;
  }

  #tools() {
    this.make = button("New topic…", () => this.#make());
    this.told = element("p", { class: "quiet", role: "status" });
    return element("div", { class: "tools" }, this.make, this.told);
  }

  async #make() {
    const name = element("input", { type: "text", autocomplete: "off", spellcheck: "false", required: true });
    const partitions = element("input", { type: "number", min: "1", value: "1" });
    const fifo = element("input", { type: "checkbox" });
    const given = await ask({
      title: "New topic",
      text: "Its other settings can be given from a program or a shell, now or later.",
      action: "Make it",
      fields: [field("Name", name), field("Partitions", partitions), field("Without delays: a FIFO log", fifo)],
      read: () => ({ names: [name.value.trim()], partitions: Number(partitions.value), delayed: !fifo.checked }),
    });
    if (!given) return;
    try {
      await post("v1/topics", given);
      const told = `${given.names[0]} is there.`;
      announce(told);
      say(this.told, told);
    } catch (error) {
      say(this.told, `${error.title} ${error.message}`);
    }
    this.refresh();
  }

  #pages() {
    this.before = button("Previous page", () => this.#change({ offset: Math.max(0, this.asked.offset - PAGE_ROWS) }));
    this.after = button("Next page", () => this.#change({ offset: this.asked.offset + PAGE_ROWS }));
    return element("nav", { class: "pages", "aria-label": "Pages of topics" }, this.before, this.after);
  }

  #sort(name) {
    const again = this.asked.sort === name;
    this.#change({ sort: name, descending: again ? !this.asked.descending : name !== "name" && name !== "next_due", offset: 0 });
  }

  #change(change) {
    this.asked = { ...this.asked, ...change };
    const { descending, offset, ...named } = this.asked;
    history.replaceState(null, "", urlOf([], { ...named, descending: descending ? 1 : "", offset: offset || "" }));
    this.refresh();
  }

  async load(signal) {
    const { descending, ...asked } = this.asked;
    const answer = await get("v1/overview", { ...asked, descending: descending ? "true" : "", limit: PAGE_ROWS }, signal);
    this.nowMs = answer.now_ms;
    this.make.disabled = !may("manage");
    this.figures.show(answer.totals, answer.now_ms, answer.lateness_edges_ms);
    this.table.showOrder(this.asked.sort, this.asked.descending);
    this.table.show(answer.topics);
    const first = this.asked.offset + 1;
    const last = this.asked.offset + answer.topics.length;
    const of = answer.matching === answer.all ? "" : ` that match, of ${count(answer.all)}`;
    say(this.found, answer.topics.length ? `${count(first)} to ${count(last)} of ${count(answer.matching)}${of}` : "None");
    this.before.disabled = this.asked.offset === 0;
    this.after.disabled = last >= answer.matching;
  }
}
