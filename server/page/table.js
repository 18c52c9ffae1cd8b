// Tables that are kept and changed in place: focus and selection stay where they are while numbers change.

import { element, say } from "./dom.js";

export class Table {
  #columns;
  #key;
  #body;
  #rows = new Map();
  #empty;
  #sorters = new Map();

  // columns: { title, cell(row) -> text or node, numeric?, head?, sort? }; head: the one that names its row.
  // key(row): what stays the same. sorted(name): where a column with `sort` is chosen.
  constructor({ caption, columns, key, empty, sorted }) {
    this.#columns = columns;
    this.#key = key;
    this.#body = element("tbody", { role: "rowgroup" });
    this.#empty = element("p", { class: "quiet", hidden: true }, empty);
    const heads = columns.map((column) => this.#head(column, sorted));
    const table = element(
      "table", { role: "table" },
      element("caption", { class: "unseen" }, caption),
      element("thead", { role: "rowgroup" }, element("tr", { role: "row" }, ...heads)),
      this.#body,
    );
    this.node = element("div", { class: "table" }, table, this.#empty);
  }

  #head(column, sorted) {
    const attributes = { role: "columnheader", scope: "col", class: column.numeric ? "number" : null };
    if (!column.sort) return element("th", attributes, column.title);
    const chosen = element("button", { type: "button", class: "sort", on: { click: () => sorted(column.sort) } }, column.title);
    const head = element("th", attributes, chosen);
    this.#sorters.set(column.sort, head);
    return head;
  }

  showOrder(name, descending) {
    for (const [each, head] of this.#sorters) {
      if (each === name) head.setAttribute("aria-sort", descending ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    }
  }

  show(rows) {
    const left = new Map(this.#rows);
    let before = null;
    for (const row of rows) {
      const key = this.#key(row);
      const line = left.get(key) ?? this.#line();
      left.delete(key);
      this.#rows.set(key, line);
      this.#fill(line, row);
      const place = before ? before.nextSibling : this.#body.firstChild;
      if (place !== line) this.#body.insertBefore(line, place);
      before = line;
    }
    for (const [key, line] of left) {
      line.remove();
      this.#rows.delete(key);
    }
    this.#empty.hidden = rows.length > 0;
    this.node.firstChild.hidden = rows.length === 0;
  }

  #line() {
    const cells = this.#columns.map((column) => {
      const attributes = { class: column.numeric ? "number" : null, "data-title": column.title };
      return column.head
        ? element("th", { role: "rowheader", scope: "row", ...attributes })
        : element("td", { role: "cell", ...attributes });
    });
    return element("tr", { role: "row" }, ...cells);
  }

  #fill(line, row) {
    this.#columns.forEach((column, place) => {
      const cell = line.children[place];
      const content = column.cell(row);
      if (!(content instanceof Node)) say(cell, String(content));
      else if (cell.firstChild?.outerHTML !== content.outerHTML && !cell.contains(document.activeElement)) {
        cell.replaceChildren(content);
      }
    });
  }
}
