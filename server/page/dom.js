// Elements, and what is said to who does not see them.

// Attributes: `on` has listeners, `class` and all others as in HTML; true is an empty one, null and false are left out.
export function element(tag, attributes = {}, ...children) {
  const made = tag === "svg" || svgTags.has(tag) ? document.createElementNS(SVG, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "on") for (const [event, listener] of Object.entries(value)) made.addEventListener(event, listener);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== null && value !== undefined && value !== false) made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

const SVG = "http://www.w3.org/2000/svg";
const svgTags = new Set(["g", "rect", "line", "text", "path", "polyline"]);

export function button(text, action, attributes = {}) {
  return element("button", { type: "button", ...attributes, on: { click: action } }, text);
}

// Only where it changed: a selection, and a screen reader, are left in peace.
export function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export function announce(text) {
  document.getElementById("announcer").textContent = text;
}

// A label and its control, which share an id.
export function field(label, control, hint = "") {
  control.id ||= `field-${(fields += 1)}`;
  const notes = [];
  if (hint) {
    const note = element("small", { id: `${control.id}-hint` }, hint);
    control.setAttribute("aria-describedby", note.id);
    notes.push(note);
  }
  return element("div", { class: "field" }, element("label", { for: control.id }, label), control, ...notes);
}

let fields = 0;
