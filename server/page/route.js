// What the address says: #/topics/mail/records?state=due

export function route() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  let parts = [];
  try {
    parts = path.split("/").filter(Boolean).map(decodeURIComponent);
  } catch {
    // a stray % names nothing
  }
  return { parts, parameters: new URLSearchParams(query ?? "") };
}

export function urlOf(parts, parameters = {}) {
  const given = Object.entries(parameters).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  const query = new URLSearchParams(given).toString();
  return `#/${parts.map(encodeURIComponent).join("/")}${query ? `?${query}` : ""}`;
}

export function topicLink(topic, part = "", parameters = {}) {
  return urlOf(["topics", topic, ...(part ? [part] : [])], parameters);
}
