// Words and numbers for people: times, names, sentences for entries and reasons.

import { type Conversation, ConversationKind, type Entry, EntryKind, MemberAction, plainName, type Presence, reasonInfo, Role } from "../client/index.js";

const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit" });
const weekday = new Intl.DateTimeFormat(undefined, { weekday: "long" });
const shortDay = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short" });
const longDay = new Intl.DateTimeFormat(undefined, { weekday: "long", day: "numeric", month: "long", year: "numeric" });
const full = new Intl.DateTimeFormat(undefined, { dateStyle: "full", timeStyle: "medium" });

const dayMs = 86_400_000;

/** The hour and minute. */
export function timeOf(at: number): string {
  return clock.format(at);
}

/** Day and time to the second, for a tooltip. */
export function fullTime(at: number): string {
  return full.format(at);
}

/** A number that is the same for all times of one local day. */
export function dayOf(at: number): number {
  const date = new Date(at);
  return new Date(date.getFullYear(), date.getMonth(), date.getDate()).getTime();
}

/** A day for a line between days: Today, Yesterday, a weekday, or a date. */
export function dayName(at: number, now: number): string {
  const days = Math.round((dayOf(now) - dayOf(at)) / dayMs);
  if (days === 0) return "Today";
  if (days === 1) return "Yesterday";
  return days > 1 && days < 7 ? weekday.format(at) : longDay.format(at);
}

/** When something happened, as short as a list wants it. */
export function shortTime(at: number, now: number): string {
  if (at === 0) return "";
  const days = Math.round((dayOf(now) - dayOf(at)) / dayMs);
  if (days === 0) return timeOf(at);
  if (days === 1) return "Yesterday";
  return days > 1 && days < 7 ? weekday.format(at) : shortDay.format(at);
}

/** When somebody was here last, in words. */
export function lastSeen(at: number, now: number): string {
  const minutes = Math.floor((now - at) / 60_000);
  if (minutes < 1) return "last seen just now";
  if (minutes < 60) return `last seen ${plural(minutes, "minute")} ago`;
  const days = Math.round((dayOf(now) - dayOf(at)) / dayMs);
  if (days === 0) return `last seen at ${timeOf(at)}`;
  if (days === 1) return `last seen yesterday at ${timeOf(at)}`;
  return `last seen ${days > 1 && days < 7 ? weekday.format(at) : shortDay.format(at)}`;
}

/** What is known of somebody, in words; empty if that is nothing. */
export function presenceText(presence: Presence | undefined, now: number): string {
  if (!presence) return "";
  if (presence.online) return "online";
  return presence.lastSeenAt > 0 ? lastSeen(presence.lastSeenAt, now) : "offline";
}

/** Who types, in words; empty if nobody does. */
export function typingText(c: Conversation): string {
  const names = [...c.typing].sort();
  if (names.length === 0) return "";
  if (c.kind === ConversationKind.DIRECT) return "typing…";
  return `${listOf(names)} ${names.length === 1 ? "is" : "are"} typing…`;
}

/** An unread count for a badge. */
export function countOf(n: number): string {
  return n > 999 ? "999+" : String(n);
}

/** A count with its noun. */
export function plural(n: number, one: string, many = `${one}s`): string {
  return `${n} ${n === 1 ? one : many}`;
}

/** Up to two letters for an avatar. */
export function initials(name: string): string {
  const words = name.split(/[\s._\-@+]+/u).filter(Boolean);
  const letters = words.length > 1 ? [words[0]!, words[1]!] : [words[0] ?? "?"];
  return letters.map((w) => [...w][0]!.toLocaleUpperCase()).join("");
}

/** One of 8 colours, the same for a name everywhere. */
export function hueOf(name: string): number {
  let hash = 0;
  for (const c of name) hash = (hash * 31 + c.codePointAt(0)!) >>> 0;
  return hash % 8;
}

/** Names in a row: a, b and c. */
export function listOf(names: readonly string[]): string {
  if (names.length <= 1) return names[0] ?? "";
  const shown = names.length > 4 ? [...names.slice(0, 3), `${names.length - 3} others`] : [...names];
  const last = shown.pop()!;
  return `${shown.join(", ")} and ${last}`;
}

/** What a change of a conversation says, in a sentence. */
export function changeText(entry: Entry, self: string): string {
  const name = (id: string) => (id === self ? "you" : id);
  const by = entry.sender === "" ? "The system" : entry.sender === self ? "You" : entry.sender;
  if (entry.memberChange) {
    const { action, userIds, role } = entry.memberChange;
    const others = userIds.filter((id) => id !== entry.sender);
    switch (action) {
      case MemberAction.ADDED:
        if (others.length < userIds.length) return others.length ? `${by} made the group with ${listOf(others.map(name))}` : `${by} made the group`;
        return `${by} added ${listOf(userIds.map(name))}`;
      case MemberAction.REMOVED:
        return `${by} removed ${listOf(userIds.map(name))}`;
      case MemberAction.LEFT:
        return `${userIds[0] === self ? "You" : userIds[0]} left`;
      case MemberAction.ROLE:
        return `${by} made ${listOf(userIds.map(name))} ${roleName(role)}`;
      default:
        return "The members changed";
    }
  }
  const change = entry.conversationChange;
  if (change?.closed) return `${by} closed the group`;
  if (change?.name !== undefined) return `${by} named the group “${plainName(change.name)}”`;
  return "The group changed";
}

/** A role with its article. */
export function roleName(role: Role): string {
  return role === Role.OWNER ? "an owner" : role === Role.ADMIN ? "an admin" : "a member";
}

/** The last line of a conversation for the list: who, and what. */
export function previewOf(c: Conversation): { who: string; text: string; state: "" | "pending" | "failed" } {
  const last = c.items.at(-1);
  if (last?.kind === "local") return { who: "You", text: last.local.content.text ?? "", state: last.local.state };
  const entries = c.timeline.entries;
  const newest = entries.at(-1);
  const entry = newest && newest.seq > (c.lastMessage?.seq ?? 0) ? newest : c.lastMessage;
  if (!entry) return { who: "", text: c.kind === ConversationKind.DIRECT ? "No messages yet" : "", state: "" };
  if (entry.kind === EntryKind.MEMBER_CHANGE || entry.kind === EntryKind.CONVERSATION_CHANGE) {
    return { who: "", text: changeText(entry, c.self), state: "" };
  }
  const who = entry.sender === c.self ? "You" : c.kind === ConversationKind.DIRECT ? "" : entry.sender;
  return { who, text: entry.content ? contentText(entry) : "This message was recalled", state: "" };
}

/** What stands in the place of a text of which nothing would be seen. */
const emptyText = "(empty)";
const unseen = /^[\s\p{Cc}\p{Cf}]*$/u;

/** The text of a message, or a word for what is not text or has none. */
export function contentText(entry: Entry): string {
  const content = entry.content;
  if (!content) return "";
  const kind = content.type && content.type !== "text" ? content.type : "";
  if (content.text !== undefined && unseen.test(content.text)) return kind ? `(${kind})` : emptyText;
  return content.text ?? `(${content.type || "data"})`;
}

const reasons: Record<string, string> = {
  forbidden: "You are not allowed to do this here.",
  not_member: "You are not a member of this conversation.",
  conversation_closed: "This conversation is closed.",
  too_large: "This is too long.",
  bad_request: "The server did not accept this.",
  invalid_id: "That is not a valid user id.",
  not_found: "There is no such user.",
  rate_limited: "Too fast. Wait a moment.",
  unavailable: "The server cannot be reached.",
  id_reused: "This message was sent before with other words.",
};

/** A reason of the error table in a sentence. */
export function reasonText(reason: string): string {
  const meaning = reasons[reason] ?? reasonInfo(reason)?.meaning ?? reason.replaceAll("_", " ");
  const sentence = meaning.charAt(0).toUpperCase() + meaning.slice(1);
  return sentence.endsWith(".") ? sentence : `${sentence}.`;
}

const stops: Record<string, string> = {
  bad_token: "Your sign-in is not valid here. Sign in again.",
  token_expired: "Your sign-in has expired. Sign in again.",
  kicked: "The operator ended your sign-in. Sign in again.",
  replaced: "You signed in on another device, and this one was signed out.",
  login_refused: "You are signed in on another device already.",
  revoked: "Your sign-in was revoked.",
  unsupported_version: "This page is too old for the server. Load it again.",
  superseded: "This conversation list is open in another window. Only the newest one stays connected.",
  bad_frame: "The server did not understand this page. Load it again.",
};

/** Why the connection ended for good, in a sentence. */
export function stopText(reason: string): string {
  return stops[reason] ?? (reason ? reasonText(reason) : "The server refused the connection.");
}
