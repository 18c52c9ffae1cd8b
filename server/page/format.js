// Numbers, amounts and instants as people read them.

import { element } from "./dom.js";

const whole = new Intl.NumberFormat("en");
const SPANS = [
  [365 * 86_400_000, "y"],
  [86_400_000, "d"],
  [3_600_000, "h"],
  [60_000, "min"],
  [1_000, "s"],
];

export function count(number) {
  return number === null || number === undefined ? "–" : whole.format(number);
}

export function rate(perSecond) {
  if (perSecond === null) return "–";
  return `${perSecond > 0 && perSecond < 10 ? perSecond.toFixed(1) : whole.format(Math.round(perSecond))}/s`;
}

export function amount(bytes) {
  if (bytes === null || bytes === undefined) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  let size = bytes;
  while (size >= 1024 && unit < units.length - 1) {
    size /= 1024;
    unit += 1;
  }
  return `${unit === 0 ? size : size.toFixed(size < 10 ? 1 : 0)} ${units[unit]}`;
}

// The two largest parts of it: "2 d 4 h", "850 ms".
export function span(ms) {
  let left = Math.abs(Math.round(ms));
  if (left < 1_000) return `${left} ms`;
  if (left < 10_000) return `${(left / 1_000).toFixed(1)} s`;
  const parts = [];
  for (const [size, unit] of SPANS) {
    const amountOf = Math.floor(left / size);
    if (amountOf || parts.length) parts.push(amountOf ? `${amountOf} ${unit}` : "");
    left -= amountOf * size;
    if (parts.length === 2) break;
  }
  return parts.filter(Boolean).join(" ");
}

export function relative(ms, nowMs) {
  if (Math.abs(ms - nowMs) < 500) return "now";
  return ms > nowMs ? `in ${span(ms - nowMs)}` : `${span(nowMs - ms)} ago`;
}

// Of what is next due: what should have been a moment ago is due now.
export function until(ms, nowMs) {
  return relative(Math.max(ms, nowMs), nowMs);
}

function pad(number, width = 2) {
  return String(number).padStart(width, "0");
}

export function day(ms) {
  const at = new Date(ms);
  return `${at.getFullYear()}-${pad(at.getMonth() + 1)}-${pad(at.getDate())}`;
}

// Time of day in the reader's zone; `step`: how fine, in ms.
export function clock(ms, step = 1_000) {
  const at = new Date(ms);
  const minutes = `${pad(at.getHours())}:${pad(at.getMinutes())}`;
  if (step >= 60_000) return minutes;
  return `${minutes}:${pad(at.getSeconds())}${step >= 1_000 ? "" : `.${pad(at.getMilliseconds(), 3)}`}`;
}

export function moment(ms, step = 1_000) {
  return isNaN(new Date(ms)) ? `${ms} ms` : `${day(ms)} ${clock(ms, step)}`;
}

export function utc(ms) {
  return isNaN(new Date(ms)) ? `${ms} ms` : `${new Date(ms).toISOString().replace("T", " ").replace("Z", "")} UTC`;
}

// In the reader's zone, and UTC where the pointer rests on it.
export function instant(ms, text = moment(ms)) {
  if (isNaN(new Date(ms))) return element("span", {}, `${ms} ms`);
  return element("time", { datetime: new Date(ms).toISOString(), title: utc(ms) }, text);
}

// What <input type=datetime-local> holds, and back; null for an empty one.
export function localInput(ms) {
  return `${day(ms)}T${clock(ms)}`;
}

export function fromLocalInput(text) {
  const ms = new Date(text).getTime();
  return isNaN(ms) ? null : ms;
}
