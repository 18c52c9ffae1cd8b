// One topic: its figures, and below them one of its parts.

import { get } from "./api.js";
import { DeadLettersView } from "./dead_letters_view.js";
import { element } from "./dom.js";
import { Figures } from "./figures.js";
import { PartitionsView } from "./partitions_view.js";
import { RecordsView } from "./records_view.js";
import { topicLink } from "./route.js";
import { ScheduleView } from "./schedule_view.js";
import { SubscriptionsView } from "./subscriptions_view.js";
import { TopicActs } from "./topic_acts.js";

const PARTS = {
  "": ["Schedule", ScheduleView],
  records: ["Records", RecordsView],
  subscriptions: ["Subscriptions", SubscriptionsView],
  partitions: ["Partitions", PartitionsView],
  "dead-letters": ["Dead letters", DeadLettersView],
};

export class TopicView {
  constructor({ route, refresh }) {
    const [, topic, part = ""] = route.parts;
    this.topic = topic;
    this.part = part in PARTS ? part : "";
    this.title = `${topic}, ${PARTS[this.part][0].toLowerCase()}`;
    this.figures = new Figures(topic);
    this.acts = new TopicActs(topic, refresh);
    this.below = new PARTS[this.part][1]({ topic, parameters: route.parameters, refresh });
    this.node = element(
      "div", {},
      element("nav", { class: "crumbs", "aria-label": "Where you are" }, element("a", { href: "#/" }, "Topics"), " / "),
      element("h1", {}, topic),
      this.figures.node,
      this.acts.node,
      this.#parts(),
      element("section", { class: "part", "aria-label": PARTS[this.part][0] }, this.below.node),
    );
  }

  #parts() {
    const links = Object.entries(PARTS).map(([part, [title]]) => {
      const current = part === this.part ? "page" : null;
      return element("a", { href: topicLink(this.topic, part), "aria-current": current }, title);
    });
    return element("nav", { class: "parts", "aria-label": `Parts of ${this.topic}` }, ...links);
  }

  async load(signal) {
    this.acts.update();
    await Promise.all([this.#loadFigures(signal), this.below.load(signal)]);
  }

  async #loadFigures(signal) {
    const answer = await get("v1/overview", { topic: this.topic }, signal);
    this.figures.show(answer.topics[0], answer.now_ms, answer.lateness_edges_ms);
  }
}
