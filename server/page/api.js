// The store's HTTP API as this page uses it: JSON in, JSON out, and what went wrong as a Problem.

const TOKEN = "afterlog.token";
const PATIENCE_MS = 30_000;

// An error as the server says it: `title` is its name, `message` for people, `next` what to do.
export class Problem extends Error {
  constructor(status, body) {
    super(body?.detail || `the server answered ${status}`);
    this.status = status;
    this.title = body?.title ?? "";
    this.next = body?.next ?? "";
  }
}

export function token() {
  return sessionStorage.getItem(TOKEN) ?? "";
}

export function keepToken(text) {
  if (text) sessionStorage.setItem(TOKEN, text);
  else sessionStorage.removeItem(TOKEN);
}

// `parameters` that are null, undefined or "" are left out.
export function get(path, parameters = {}, signal = undefined) {
  const given = Object.entries(parameters).filter(([, value]) => value !== null && value !== undefined && value !== "");
  const query = new URLSearchParams(given).toString();
  return ask("GET", query ? `${path}?${query}` : path, undefined, signal);
}

export function post(path, body) {
  return ask("POST", path, JSON.stringify(body), undefined);
}

export function remove(path) {
  return ask("DELETE", path, undefined, undefined);
}

export function topicPath(topic, ...rest) {
  return ["v1/topics", encodeURIComponent(topic), ...rest].join("/");
}

async function ask(method, path, body, signal) {
  const headers = { Accept: "application/json", "X-Afterlog": "1" }; // no form of another page can send that one
  if (body !== undefined) headers["Content-Type"] = "application/json";
  if (token()) headers.Authorization = `Bearer ${token()}`;
  const patience = AbortSignal.timeout(PATIENCE_MS);
  const options = { method, headers, body, cache: "no-store", credentials: "omit", redirect: "error" };
  const answer = await fetch(path, { ...options, signal: signal ? AbortSignal.any([signal, patience]) : patience });
  const text = await answer.text();
  if (!answer.ok) throw new Problem(answer.status, parsed(text));
  return parsed(text);
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}
