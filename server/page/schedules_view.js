// Recurring schedules of all topics, and what can be done to each.

import { get, post, remove } from "./api.js";
import { inline } from "./bytes.js";
import { ask } from "./dialogs.js";
import { announce, button, element, say } from "./dom.js";
import { instant, span, until } from "./format.js";
import { topicLink } from "./route.js";
import { may } from "./session.js";
import { Table } from "./table.js";

export class SchedulesView {
  constructor({ refresh }) {
    this.refresh = refresh;
    this.title = "Schedules";
    this.acts = new Map();
    this.table = new Table({
      caption: "Schedules",
      empty: "Nothing recurs.",
      key: (row) => row.name,
      columns: [
        { title: "Schedule", head: true, cell: (row) => row.name },
        { title: "Topic", cell: (row) => element("a", { href: topicLink(row.topic) }, row.topic) },
        { title: "When", cell: (row) => (row.cron === null ? `every ${span(row.every_s * 1_000)}` : `${row.cron} ${row.timezone}`) },
        { title: "Next due", cell: (row) => (row.next_due === null ? (row.paused ? "paused" : "–") : instant(row.next_due, until(row.next_due, Date.now()))) },
        { title: "Value", cell: (row) => element("span", { class: "preview" }, inline(row.value)) },
        { title: "Missed ones", cell: (row) => row.missed },
        { title: "Fault", cell: (row) => row.fault ?? "–" },
        { title: "This one", cell: (row) => this.#acts(row) },
      ],
    });
    this.told = element("p", { class: "quiet", role: "status" });
    this.node = element("div", {}, element("h1", {}, "Schedules"), this.told, this.table.node);
  }

  async load(signal) {
    this.table.show((await get("v1/schedules", {}, signal)).schedules);
  }

  // Kept, and changed in place, for who has a button in focus.
  #acts(row) {
    const made = this.acts.get(row.name) ?? this.#made(row.name);
    made.paused = row.paused;
    say(made.turn, row.paused ? "Resume" : "Pause");
    made.turn.setAttribute("aria-label", `${row.paused ? "Resume" : "Pause"} ${row.name}`);
    made.now.disabled = made.turn.disabled = made.away.disabled = !may("send", row.topic);
    return made.node;
  }

  #made(name) {
    const path = `v1/schedules/${encodeURIComponent(name)}`;
    const made = { paused: false };
    made.turn = button("Pause", () => this.#does(() => post(`${path}/${made.paused ? "resume" : "pause"}`, {}), `${name} ${made.paused ? "goes on" : "is paused"}.`), { class: "link" });
    made.away = button("Remove…", () => this.#remove(name, path), { class: "link", "aria-label": `Remove ${name}` });
    made.now = button("Send now", () => this.#does(() => post(`${path}/send`, {}), `A record of ${name} was sent.`), { class: "link", "aria-label": `Send ${name} now` });
    made.node = element("span", { class: "acts" }, made.now, " ", made.turn, " ", made.away);
    this.acts.set(name, made);
    return made;
  }

  async #remove(name, path) {
    const text = "Its pending record is cancelled, and none comes after it.";
    if (await ask({ title: `Remove ${name}?`, text, action: "Remove the schedule", danger: true })) {
      await this.#does(() => remove(path), `${name} is removed.`);
    }
  }

  async #does(act, told) {
    try {
      await act();
      announce(told);
      say(this.told, told);
    } catch (error) {
      say(this.told, `${error.title} ${error.message}`);
    }
    this.refresh();
  }
}
