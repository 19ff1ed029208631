// How a backend on Node believes what imd posts to it.
import { createHmac, timingSafeEqual } from "node:crypto";

// verify reports whether a request was signed with the key within five minutes of
// now. headers have lower-case names, as Node gives them; body is a Buffer with the
// bytes as they came.
export function verify(headers, body, key, now = Date.now()) {
  const id = headers["webhook-id"], stamp = headers["webhook-timestamp"];
  if (!/^\d+$/.test(stamp ?? "") || Math.abs(now - Number(stamp) * 1000) > 300_000) return false;
  const want = createHmac("sha256", key).update(`${id}.${stamp}.`).update(body).digest();
  return (headers["webhook-signature"] ?? "").split(" ").some((part) => {
    const have = part.startsWith("v1,") ? Buffer.from(part.slice(3), "base64") : Buffer.alloc(0);
    return have.length === want.length && timingSafeEqual(have, want);
  });
}
