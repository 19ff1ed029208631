// What the page shows: the session, the chosen conversation, what is open.

import { signal } from "@preact/signals";
import { type Announcement, type Conversation, type Entry, ImdError } from "../client/index.js";
import { contentText, reasonText } from "./format.js";
import { type Session, signOut as forget } from "./session.js";

/** A short message that goes away by itself. */
export interface Toast {
  id: number;
  text: string;
}

export const session = signal<Session | undefined>(undefined);
export const selected = signal<Conversation | undefined>(undefined);
export const infoOpen = signal(false);
export const dialogOpen = signal(false);
/** What the operator tells everybody and the person has not closed, the oldest first. */
export const announcements = signal<Announcement[]>([]);
export const toasts = signal<Toast[]>([]);
/** Spoken by screen readers when it changes. */
export const spoken = signal("");
/**
 * Rises whenever the client has something new to show. Every component that
 * shows what the client holds reads it: one with state of its own is otherwise
 * drawn again only when its properties change.
 */
export const tick = signal(0);
/** Until when conversations are muted, by id; 0 = until they are unmuted. */
export const mutes = signal<Map<string, number>>(new Map());
/** Whether the person looks at the page. */
export const watching = signal(true);

const toastMs = 6_000;
let lastToast = 0;
let ticking = false;

/** Shows a new frame of the page soon; many calls make one. */
export function refresh(): void {
  if (ticking) return;
  ticking = true;
  // A hidden page gets no animation frames.
  const later = document.hidden ? (f: () => void) => setTimeout(f, 50) : requestAnimationFrame;
  later(() => {
    ticking = false;
    tick.value++;
  });
}

/** Stops showing an announcement. */
export function closeAnnouncement(seq: number): void {
  announcements.value = announcements.value.filter((a) => a.seq !== seq);
}

/** Shows a message for some seconds. */
export function toast(text: string): void {
  const id = ++lastToast;
  const others = toasts.value.filter((t) => t.text !== text);
  toasts.value = [...others.slice(-2), { id, text }];
  setTimeout(() => dismiss(id), toastMs);
}

/** Takes a message away. */
export function dismiss(id: number): void {
  toasts.value = toasts.value.filter((t) => t.id !== id);
}

/** Shows what went wrong. */
export function toastError(error: unknown): void {
  toast(error instanceof ImdError ? reasonText(error.reason) : String(error));
}

/** Begins to use a session, and to connect. */
export function enter(s: Session): void {
  let online = false;
  s.client.on({
    announcement: (a) => (announcements.value = [...announcements.value, a]),
    announcementGone: closeAnnouncement,
    state: () => {
      const before = online;
      online = s.client.state.phase === "online";
      if (online && !before) void readMutes(s);
      refresh();
    },
    conversation: refresh,
    presence: refresh,
    conversations: () => {
      restore(s);
      refresh();
    },
    message: announce,
    failed: (conversation, error) => {
      if (conversation !== selected.value) toast(`A message to ${conversation.title} was not sent. ${reasonText(error.reason)}`);
    },
  });
  session.value = s;
  s.client.start();
}

/** Reads what this user has muted, here or on another device. */
export async function readMutes(s: Session): Promise<void> {
  try {
    const read = await s.api.listMutes();
    if (session.value === s) mutes.value = read;
  } catch {
    // What was known before stays; it is read again with the next connection.
  }
}

/** Whether notices of a conversation are kept away now. */
export function muted(conversation: Conversation): boolean {
  const until = mutes.value.get(conversation.id);
  return until !== undefined && (until === 0 || until > Date.now());
}

/** Leaves the session and shows the sign-in page. */
export function leave(): void {
  if (session.value) forget(session.value);
  session.value = selected.value = undefined;
  announcements.value = [];
  infoOpen.value = dialogOpen.value = false;
  mutes.value = new Map();
}

/** Opens a conversation; the browser's back button closes it. */
export function open(conversation: Conversation): void {
  if (selected.value === conversation) return;
  const state = { open: conversation.key };
  if (selected.value) history.replaceState(state, "");
  else history.pushState(state, "");
  selected.value = conversation;
  infoOpen.value = false;
}

/** Goes back to the list. */
export function close(): void {
  if (!selected.value) return;
  selected.value = undefined;
  infoOpen.value = false;
  history.replaceState(null, "");
}

/** Follows the browser's back and forward buttons. */
export function followHistory(): void {
  const key = (history.state as { open?: string } | null)?.open;
  selected.value = key ? session.value?.client.conversation(key) : undefined;
  infoOpen.value = false;
}

/** After a reload the conversation that was open opens again as soon as it is known. */
function restore(s: Session): void {
  const key = (history.state as { open?: string } | null)?.open;
  if (!key || selected.value || session.value !== s) return;
  const conversation = s.client.conversation(key) ?? (key.startsWith("@") ? s.client.direct(key.slice(1)) : undefined);
  if (conversation) selected.value = conversation;
}

function announce(conversation: Conversation, entry: Entry): void {
  const where = conversation.title === entry.sender ? "" : ` in ${conversation.title}`;
  spoken.value = `${entry.sender}${where}: ${contentText(entry).slice(0, 200)}`;
}
