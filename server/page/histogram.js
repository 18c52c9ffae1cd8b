// How many records are due when: bars that can be zoomed by pointer and by keys, and the same as a table.
//
//     drag           zoom to what was drawn over         ← →          from bar to bar
//     click          choose a bar                        Enter        zoom to the bar
//     double click   zoom out                            + −  0       zoom in, out, all
//     Ctrl + wheel   zoom in and out                     Page ↑ ↓     earlier, later

import { button, element, say } from "./dom.js";
import { count, instant, moment, span } from "./format.js";
import { marks } from "./time_axis.js";

const HEIGHT = 200;
const MARGIN = { top: 10, right: 12, bottom: 38, left: 64 };
const LEAST_MS = 10;

export class Histogram {
  // changed(fromMs or null, toMs or null): what is to be asked for; picked(fromMs): records from there are wanted.
  constructor({ changed, picked }) {
    this.changed = changed;
    this.picked = picked;
    this.bars = [];
    this.chosen = -1;
    this.window = { from: null, to: null };
    this.plot = element("svg", { "aria-hidden": "true", focusable: "false" });
    this.stage = element(
      "div",
      {
        class: "plot", tabindex: "0", role: "application", "aria-roledescription": "histogram that can be zoomed",
        "aria-label": "Pending records by when they are due", "aria-describedby": "plot-help",
      },
      this.plot,
    );
    this.tip = element("p", { class: "tip", role: "status" });
    this.rows = element("tbody");
    this.span = element("span", { class: "span" });
    this.records = button("Records from here", () => this.picked(this.bars[this.chosen][0]), { disabled: true });
    this.node = element("figure", { class: "histogram" }, this.#tools(), this.stage, this.tip, this.#help(), this.#table());
    this.#listen();
    new ResizeObserver(() => this.draw()).observe(this.stage);
  }

  #tools() {
    return element(
      "div", { class: "tools", role: "toolbar", "aria-label": "Zoom" },
      button("Zoom in", () => this.zoom(0.5)),
      button("Zoom out", () => this.zoom(2)),
      button("Earlier", () => this.pan(-0.5)),
      button("Later", () => this.pan(0.5)),
      button("All", () => this.all()),
      this.records,
      this.span,
    );
  }

  #help() {
    const text = "Drag to zoom, double-click to zoom out. Keys: arrows choose a bar, Enter zooms to it, plus and minus "
      + "zoom, Page Up and Page Down move, 0 shows all.";
    return element("p", { class: "help", id: "plot-help" }, text);
  }

  #table() {
    const heads = ["From", "Until", "Records"].map((title, row) => element("th", { scope: "col", class: row > 1 ? "number" : null }, title));
    const caption = element("caption", { class: "unseen" }, "Pending records by when they are due");
    const table = element("table", {}, caption, element("thead", {}, element("tr", {}, ...heads)), this.rows);
    this.details = element("details", {}, element("summary", {}, "As a table"), element("div", { class: "table" }, table));
    this.details.addEventListener("toggle", () => this.#fillTable());
    return this.details;
  }

  // bars: [[from ms, to ms, records], …], ascending.
  show(bars) {
    const before = this.bars[this.chosen]?.[0];
    const { from: first, to: last } = this.window; // the server's bars are round, and count what is within
    this.bars = bars
      .map(([from, to, records]) => [Math.max(from, first ?? from), Math.min(to, last ?? to), records])
      .filter(([from, to]) => from < to);
    this.chosen = before === undefined ? -1 : bars.findIndex(([from, to]) => from <= before && before < to);
    this.draw();
    this.#fillTable();
  }

  get from() {
    return this.bars[0]?.[0] ?? 0;
  }

  get to() {
    return this.bars.at(-1)?.[1] ?? 0;
  }

  ask(from, to) {
    if (from !== null && to - from < LEAST_MS) to = from + LEAST_MS;
    this.window = { from: from === null ? null : Math.round(from), to: to === null ? null : Math.round(to) };
    this.chosen = -1;
    this.changed(this.window.from, this.window.to);
    const asked = from === null ? "All that is pending." : `From ${moment(from)} until ${moment(to)}, ${span(to - from)}.`;
    say(this.tip, asked);
  }

  all() {
    this.ask(null, null);
  }

  zoom(factor, around = this.#center()) {
    if (!this.bars.length) return;
    const left = (around - this.from) * factor;
    const right = (this.to - around) * factor;
    this.ask(Math.max(0, around - left), around + right);
  }

  pan(share) {
    if (!this.bars.length) return;
    const by = (this.to - this.from) * share;
    this.ask(Math.max(0, this.from + by), this.to + by);
  }

  #center() {
    const bar = this.bars[this.chosen];
    return bar ? (bar[0] + bar[1]) / 2 : (this.from + this.to) / 2;
  }

  choose(row) {
    this.chosen = Math.max(0, Math.min(this.bars.length - 1, row));
    const bar = this.bars[this.chosen];
    if (!bar) return;
    say(this.tip, this.#told(bar));
    this.draw();
  }

  #told([from, to, records]) {
    const step = to - from < 1_000 ? 1 : 1_000;
    return `${moment(from, step)} until ${moment(to, step)}: ${count(records)} ${records === 1 ? "record" : "records"}`;
  }

  // Drawing.

  get #width() {
    return Math.max(240, Math.floor(this.stage.clientWidth));
  }

  #x(ms) {
    const share = (ms - this.from) / Math.max(1, this.to - this.from);
    return MARGIN.left + share * (this.#width - MARGIN.left - MARGIN.right);
  }

  #ms(x) {
    const share = (x - MARGIN.left) / (this.#width - MARGIN.left - MARGIN.right);
    return this.from + Math.max(0, Math.min(1, share)) * (this.to - this.from);
  }

  draw() {
    const width = this.#width;
    this.plot.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    this.plot.setAttribute("height", HEIGHT);
    this.plot.setAttribute("width", width);
    this.records.disabled = this.chosen < 0;
    say(this.span, this.bars.length ? `${moment(this.from)} until ${moment(this.to)}` : "");
    if (!this.bars.length) {
      this.plot.replaceChildren(element("text", { x: width / 2, y: HEIGHT / 2, class: "none" }, "Nothing is pending."));
      return;
    }
    const most = Math.max(1, ...this.bars.map(([, , records]) => records));
    this.plot.replaceChildren(...this.#grid(most), ...this.#axis(), ...this.#drawn(most));
    this.drawn = element("rect", { class: "drawn", y: MARGIN.top, height: HEIGHT - MARGIN.top - MARGIN.bottom, width: 0 });
    this.plot.append(this.drawn);
  }

  #y(records, most) {
    const high = HEIGHT - MARGIN.top - MARGIN.bottom;
    return records ? Math.max(2, (records / most) * high) : 0;
  }

  #drawn(most) {
    return this.bars.map(([from, to, records], row) => {
      const left = this.#x(from);
      const gap = this.bars.length > 1 ? 1 : 0;
      const high = this.#y(records, most);
      return element("rect", {
        x: left.toFixed(1), width: Math.max(0.8, this.#x(to) - left - gap).toFixed(1),
        y: (HEIGHT - MARGIN.bottom - high).toFixed(1), height: high.toFixed(1),
        class: row === this.chosen ? "chosen" : "bar-of-records",
      });
    });
  }

  #grid(most) {
    const lines = [];
    const step = Math.max(1, niceBelow(most / 2));
    for (let records = 0; records <= most; records += step) {
      const y = HEIGHT - MARGIN.bottom - (records / most) * (HEIGHT - MARGIN.top - MARGIN.bottom);
      lines.push(element("line", { x1: MARGIN.left, x2: this.#width - MARGIN.right, y1: y, y2: y, class: "grid" }));
      lines.push(element("text", { x: MARGIN.left - 8, y: y + 4, class: "mark amount" }, count(records)));
    }
    return lines;
  }

  #axis() {
    const y = HEIGHT - MARGIN.bottom;
    return marks(this.from, this.to, Math.floor(this.#width / 110)).flatMap(({ ms, label, day }) => {
      const x = this.#x(ms);
      return [
        element("line", { x1: x, x2: x, y1: y, y2: y + 4, class: "grid" }),
        element("text", { x: this.#within(x), y: y + 16, class: "mark" }, label),
        ...(day ? [element("text", { x: this.#within(x), y: y + 31, class: "mark" }, day)] : []),
      ];
    });
  }

  // A text in the middle of which this is stays whole.
  #within(x) {
    return Math.min(x, this.#width - 38);
  }

  #fillTable() {
    if (!this.details.open) return;
    const lines = this.bars.filter(([, , records]) => records).map(([from, to, records]) =>
      element(
        "tr", {},
        element("td", {}, instant(from, moment(from, to - from < 1_000 ? 1 : 1_000))),
        element("td", {}, instant(to, moment(to, to - from < 1_000 ? 1 : 1_000))),
        element("td", { class: "number" }, count(records)),
      ),
    );
    this.rows.replaceChildren(...lines);
  }

  // Pointer and keys.

  #listen() {
    let begun = null;
    const at = (event) => event.clientX - this.stage.getBoundingClientRect().left;
    const drawnTo = (x) => {
      this.drawn.setAttribute("x", Math.min(begun, x));
      this.drawn.setAttribute("width", Math.abs(x - begun));
    };
    this.stage.addEventListener("pointerdown", (event) => {
      if (event.button !== 0 || !this.bars.length) return;
      begun = at(event);
      this.stage.setPointerCapture(event.pointerId);
    });
    this.stage.addEventListener("pointermove", (event) => {
      if (begun !== null && this.drawn) drawnTo(at(event));
    });
    this.stage.addEventListener("pointercancel", () => {
      begun = null;
      this.draw();
    });
    this.stage.addEventListener("pointerup", (event) => {
      if (begun === null) return;
      const [left, right] = [begun, at(event)].sort((a, b) => a - b);
      begun = null;
      if (right - left > 4) this.ask(this.#ms(left), this.#ms(right));
      else this.choose(this.bars.findLastIndex(([from]) => from <= this.#ms(left)));
    });
    this.stage.addEventListener("dblclick", (event) => this.zoom(2, this.#ms(at(event))));
    this.stage.addEventListener("wheel", (event) => {
      if (!event.ctrlKey) return; // the page scrolls
      event.preventDefault();
      this.zoom(event.deltaY < 0 ? 0.5 : 2, this.#ms(at(event)));
    }, { passive: false });
    this.stage.addEventListener("keydown", (event) => this.#pressed(event));
  }

  #pressed(event) {
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    const bar = this.bars[this.chosen];
    const keys = {
      ArrowRight: () => this.choose(this.chosen + 1),
      ArrowLeft: () => this.choose(this.chosen < 0 ? this.bars.length - 1 : this.chosen - 1),
      Home: () => this.choose(0),
      End: () => this.choose(this.bars.length - 1),
      Enter: () => bar && this.ask(bar[0], bar[1]),
      "+": () => this.zoom(0.5),
      "=": () => this.zoom(0.5),
      "-": () => this.zoom(2),
      "0": () => this.all(),
      PageUp: () => this.pan(-0.5),
      PageDown: () => this.pan(0.5),
    };
    if (!(event.key in keys)) return;
    event.preventDefault();
    keys[event.key]();
  }
}

// The largest of 1, 2, 5, 10, 20, … that is not above it.
function niceBelow(number) {
  if (number < 1) return 0;
  const power = 10 ** Math.floor(Math.log10(number));
  return [5, 2, 1].find((each) => each * power <= number) * power;
}
