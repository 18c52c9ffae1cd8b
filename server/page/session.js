// What the server says of itself and of what we may do here.

import { get } from "./api.js";

let store = null;

export async function learn() {
  store = await get("v1/store");
  return store;
}

// Whether the token has a scope for a topic, or for some. Where the server does not say, it is tried, and the server decides.
export function may(scope, topic = null) {
  const grants = store?.scopes;
  if (!grants) return true;
  return (grants[scope] ?? []).some((prefix) => topic === null || topic.startsWith(prefix));
}
