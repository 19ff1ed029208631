// Signing in: where tokens come from, and the client that lives on them.

import { Api, Client, SignInRequired, type TokenReason, uuid7, webAnnouncements, webStore } from "../client/index.js";

/** A signed-in user. */
export interface Session {
  userId: string;
  client: Client;
  api: Api;
}

/** A user that a development server offers for signing in. */
export interface DemoUser {
  userId: string;
  token: string;
}

const tokenKey = "imd.token";
const deviceKey = "imd.device";

/** The users that a development server offers; empty on any other server. */
export async function demoUsers(): Promise<DemoUser[]> {
  try {
    const response = await fetch(new URL("dev/users", document.baseURI), { headers: { Accept: "application/json" } });
    if (!response.ok || !response.headers.get("Content-Type")?.includes("json")) return [];
    const { users } = (await response.json()) as { users?: DemoUser[] };
    return (users ?? []).filter((u) => u.userId && u.token);
  } catch {
    return [];
  }
}

/** The demo user that the address selects with #user=name; empty = none. */
export function hashUser(): string {
  return new URLSearchParams(location.hash.slice(1)).get("user") ?? "";
}

/** The user a token is for, read without checking it; empty if it is no token. */
export function tokenUser(token: string): string {
  try {
    const part = token.split(".")[1] ?? "";
    const bytes = Uint8Array.from(atob(part.replaceAll("-", "+").replaceAll("_", "/")), (c) => c.charCodeAt(0));
    const { sub } = JSON.parse(new TextDecoder().decode(bytes)) as { sub?: unknown };
    return typeof sub === "string" ? sub : "";
  } catch {
    return "";
  }
}

/** The token that this tab signed in with before; empty = none. */
export function keptToken(): string {
  return sessionStorage.getItem(tokenKey) ?? "";
}

/** Signs in with a token that was pasted. It cannot be renewed: when it ends, so does the session. */
export async function signIn(token: string): Promise<Session> {
  const userId = tokenUser(token);
  if (userId === "") throw new SignInRequired("This is not a token.");
  sessionStorage.setItem(tokenKey, token);
  return begin(userId, (reason) => {
    if (reason === "token_expired") throw new SignInRequired("The token has expired.");
    return token;
  });
}

/** Signs in as a demo user; new tokens come from the server. */
export async function signInDemo(user: DemoUser): Promise<Session> {
  history.replaceState(history.state, "", `#user=${encodeURIComponent(user.userId)}`);
  let token = user.token;
  return begin(user.userId, async (reason) => {
    if (reason !== "refresh" && reason !== "token_expired") return token;
    const renewed = (await demoUsers()).find((u) => u.userId === user.userId);
    if (!renewed && reason === "token_expired") throw new Error("the server gives no token");
    return (token = renewed?.token ?? token);
  });
}

/** Forgets the token of this tab. Unsent messages stay for the next time. */
export function signOut(session: Session): void {
  session.client.stop();
  sessionStorage.removeItem(tokenKey);
  history.replaceState(null, "", location.pathname + location.search);
}

async function begin(userId: string, token: (reason: TokenReason) => string | Promise<string>): Promise<Session> {
  const url = new URL("v1/ws", document.baseURI);
  url.protocol = url.protocol === "https:" ? "wss:" : "ws:";
  const client = new Client({
    url: url.href,
    userId,
    token,
    deviceId: await deviceId(),
    client: "imd-web/0.1.0",
    ...(storage() && { store: webStore(storage()!), announcements: webAnnouncements(storage()!) }),
  });
  return { userId, client, api: new Api({ url: document.baseURI, token: () => token("start") }) };
}

function storage(): Storage | undefined {
  try {
    return localStorage;
  } catch {
    return undefined; // Switched off by the person.
  }
}

/**
 * An id for this tab, kept when it is loaded again. A copy of a tab starts with
 * the id of its original; a lock that the original holds tells them apart.
 */
async function deviceId(): Promise<string> {
  const kept = sessionStorage.getItem(deviceKey);
  if (kept && (await claim(kept))) return kept;
  const made = `web-${uuid7()}`;
  sessionStorage.setItem(deviceKey, made);
  await claim(made);
  return made;
}

/** Holds a name until the tab ends. True as well where the browser has no locks. */
function claim(id: string): Promise<boolean> {
  if (!navigator.locks) return Promise.resolve(true);
  return new Promise((resolve) => {
    const claimed = navigator.locks.request(`imd.device/${id}`, { ifAvailable: true }, (lock) => {
      resolve(lock !== null);
      return lock ? new Promise<void>(() => {}) : undefined;
    });
    claimed.catch(() => resolve(true));
  });
}
