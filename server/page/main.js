// What the address names is shown, and asked again every two seconds while somebody looks.

import { Problem, token } from "./api.js";
import { askForToken } from "./dialogs.js";
import { announce, element, say } from "./dom.js";
import { span } from "./format.js";
import { Poller } from "./polling.js";
import { route } from "./route.js";
import { SchedulesView } from "./schedules_view.js";
import { learn } from "./session.js";
import { TopicView } from "./topic_view.js";
import { TopicsView } from "./topics_view.js";

const main = document.getElementById("main");
const connection = document.getElementById("connection");
const pause = document.getElementById("pause");
let poller = null;
let asking = false;
let refused = null; // the token that was: it is asked for once, and then by the button

function show({ focus = true } = {}) {
  poller?.stop();
  const here = route();
  const View = here.parts[0] === "schedules" ? SchedulesView : here.parts[0] === "topics" && here.parts[1] ? TopicView : TopicsView;
  const view = new View({ route: here, refresh: () => poller.now() });
  document.title = `${view.title} · afterlog`;
  main.replaceChildren(view.node);
  poller = new Poller((signal) => load(view, signal), tell);
  poller.paused = pause.getAttribute("aria-pressed") === "true";
  poller.now();
  if (!focus) return;
  main.focus({ preventScroll: true });
  scrollTo(0, 0);
  announce(view.title);
}

let known = false;

async function load(view, signal) {
  if (!known) showFacts(await learn());
  known = true;
  await view.load(signal);
}

function showFacts(store) {
  const { kind, interval_ms: interval } = store.durability;
  const durability = interval ? `${kind} ${span(interval)}` : kind;
  say(document.getElementById("facts"), `${location.host} · version ${store.version} · durability ${durability}`);
}

function tell(error, waitMs) {
  connection.classList.toggle("failed", error !== null);
  if (error === null) say(connection, pause.getAttribute("aria-pressed") === "true" ? "paused" : "live");
  else if (error instanceof Problem) say(connection, `${error.title || "Refused"}: ${error.message}`);
  else say(connection, `The server cannot be reached; it is asked again every ${span(waitMs)}.`);
  if (!(error instanceof Problem) || error.status !== 401 || refused === token()) return;
  refused = token();
  wantToken("The server asks for one.");
}

async function wantToken(reason = "") {
  if (asking) return;
  asking = true;
  if (await askForToken(reason)) {
    known = false;
    show({ focus: false });
  }
  asking = false;
}

pause.addEventListener("click", () => {
  const paused = pause.getAttribute("aria-pressed") !== "true";
  pause.setAttribute("aria-pressed", String(paused));
  say(connection, paused ? "paused" : "live");
  poller.pause(paused);
});
document.getElementById("token").addEventListener("click", () => wantToken());
document.getElementById("skip").addEventListener("click", (event) => {
  event.preventDefault(); // the address names what is shown
  main.focus();
});
addEventListener("hashchange", () => show());
addEventListener("unhandledrejection", (event) => {
  main.prepend(element("p", { class: "alert", role: "alert" }, event.reason?.message ?? "Something failed."));
});
show({ focus: false });
