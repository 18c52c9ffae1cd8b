// What is pending over time.

import { get, topicPath } from "./api.js";
import { element } from "./dom.js";
import { Histogram } from "./histogram.js";
import { topicLink } from "./route.js";

export class ScheduleView {
  constructor({ topic, refresh }) {
    this.topic = topic;
    this.histogram = new Histogram({
      changed: refresh,
      picked: (from) => (location.hash = topicLink(topic, "records", { state: "pending", from })),
    });
    this.node = element("div", {}, element("h2", {}, "Pending, by when it is due"), this.histogram.node);
  }

  async load(signal) {
    const bars = Math.max(40, Math.min(160, Math.floor(this.node.clientWidth / 7)));
    const answer = await get(topicPath(this.topic, "histogram"), { bars, ...this.histogram.window }, signal);
    this.histogram.show(answer.bars);
  }
}
