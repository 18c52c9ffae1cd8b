// Small figures with their names, some with a curve of the last two minutes.

import { element, say } from "./dom.js";

export class Tiles {
  #tiles = new Map();

  // tiles: [name, title, what it means]
  constructor(label, tiles) {
    this.node = element("dl", { class: "tiles", "aria-label": label });
    for (const [name, title, meaning] of tiles) {
      const value = element("dd", { class: "value" });
      const note = element("dd", { class: "note" });
      const curve = element("polyline", { points: "" });
      const small = element("svg", { class: "curve", viewBox: "0 0 100 20", preserveAspectRatio: "none", "aria-hidden": "true" }, curve);
      this.#tiles.set(name, { value, note, curve });
      this.node.append(element("div", { class: "tile", title: meaning }, element("dt", {}, title), value, note, element("dd", { "aria-hidden": "true" }, small)));
    }
  }

  // value: text, or a node; note: text beside it; curve: numbers.
  show(name, value, note = "", curve = []) {
    const tile = this.#tiles.get(name);
    if (!(value instanceof Node)) say(tile.value, value);
    else if (tile.value.innerHTML !== value.outerHTML) tile.value.replaceChildren(value);
    say(tile.note, note);
    const most = Math.max(...curve, 1e-9);
    const points = curve.map((number, row) => `${(100 * row) / Math.max(1, curve.length - 1)},${19 - (18 * number) / most}`);
    tile.curve.setAttribute("points", most > 1e-6 ? points.join(" ") : "");
  }
}
