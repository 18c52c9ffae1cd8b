// Where the marks of a time axis lie, in the reader's zone, and what stands at them.

import { clock, day } from "./format.js";

const SECOND = 1_000;
const MINUTE = 60 * SECOND;
const HOUR = 60 * MINUTE;
const DAY = 24 * HOUR;
const STEPS = [
  1, 2, 5, 10, 20, 50, 100, 200, 500,
  SECOND, 2 * SECOND, 5 * SECOND, 10 * SECOND, 30 * SECOND,
  MINUTE, 2 * MINUTE, 5 * MINUTE, 10 * MINUTE, 30 * MINUTE,
  HOUR, 2 * HOUR, 3 * HOUR, 6 * HOUR, 12 * HOUR,
  DAY, 2 * DAY, 7 * DAY, 14 * DAY, 30 * DAY, 90 * DAY, 365 * DAY, 3_650 * DAY, 36_500 * DAY,
];

// At most so many marks: [{ ms, label, begins }], `begins` where it names the day, as the first one does.
export function marks(fromMs, toMs, most) {
  const step = STEPS.find((each) => (toMs - fromMs) / each <= most) ?? STEPS.at(-1);
  const shift = new Date(fromMs).getTimezoneOffset() * MINUTE;
  const found = [];
  let lastDay = "";
  for (let ms = Math.ceil((fromMs - shift) / step) * step + shift; ms < toMs && found.length <= most; ms += step) {
    const here = day(ms);
    const begins = here !== lastDay;
    found.push({ ms, label: step >= DAY ? here : clock(ms, step), day: step < DAY && begins ? here : "" });
    lastDay = here;
  }
  return found;
}
