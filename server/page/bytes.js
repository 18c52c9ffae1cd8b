// Bytes of a record, which JSON has as text or as base64, shown as text, JSON or hex.

const SHOWN_BYTES = 64 * 1024;

// null for no bytes; `text` is null where they are no UTF-8.
export function bytesOf(value) {
  if (value === null || value === undefined) return null;
  if (typeof value === "string") return { text: value, bytes: new TextEncoder().encode(value) };
  return { text: null, bytes: Uint8Array.from(atob(value.base64), (letter) => letter.charCodeAt(0)) };
}

// In one line, for a list.
export function inline(value) {
  const found = bytesOf(value);
  if (found === null) return "–";
  if (found.text === null) return [...found.bytes.slice(0, 32)].map(hexOf).join(" ");
  return found.text.replace(/\s+/g, " ");
}

// null where it is none.
export function asJson(found) {
  if (found.text === null) return null;
  try {
    return JSON.stringify(JSON.parse(found.text), null, 2);
  } catch {
    return null;
  }
}

export function asHex(found) {
  const lines = [];
  for (let start = 0; start < Math.min(found.bytes.length, SHOWN_BYTES); start += 16) {
    const row = [...found.bytes.slice(start, start + 16)];
    const text = row.map((byte) => (byte >= 32 && byte < 127 ? String.fromCharCode(byte) : ".")).join("");
    lines.push(`${start.toString(16).padStart(8, "0")}  ${row.map(hexOf).join(" ").padEnd(47)}  ${text}`);
  }
  if (found.bytes.length > SHOWN_BYTES) lines.push(`… ${found.bytes.length - SHOWN_BYTES} bytes more`);
  return lines.join("\n");
}

function hexOf(byte) {
  return byte.toString(16).padStart(2, "0");
}
