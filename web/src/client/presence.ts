// Who is online, and who types: what a client watches, over all connections.

import { create } from "@bufbuild/protobuf";
import { type Presence as PresenceFrame, TypingSchema, WatchPresenceSchema } from "../gen/imd/client/v1/client_pb.js";
import type { Connection } from "./connection.js";
import type { Conversation } from "./conversation.js";
import { Timers } from "./timers.js";

/** What others see of a user. */
export interface Presence {
  online: boolean;
  /** With what it is online: phone, tablet, web, desktop, bot. */
  classes: readonly string[];
  /** Milliseconds since 1970 of the end of its last session; 0 = it is online, or that is not known. */
  lastSeenAt: number;
}

/** Whom to watch. */
export interface Watch {
  /** Users with whom a conversation is shared; nothing is told of others. */
  users?: readonly string[];
  /** Ids of conversations of at most 200 members. */
  conversations?: readonly string[];
}

/** The most users that a client watches by name. */
export const watchedUsers = 200;
/** The most conversations whose members a client watches. */
export const watchedConversations = 8;

/** How long somebody types who was said to. */
export const typingMs = 6_000;

/** Questions that come together are one. */
const gatherMs = 50;
const retryMs = 2_000;

/** Keeps what is watched known, as far as there is a connection. */
export class Presences {
  #conn: () => Connection | undefined;
  #changed: () => void;
  #random: () => number;
  #timers = new Timers();
  #watches = new Set<Watch>();
  #known = new Map<string, Presence>();
  #asked = "";
  #answered = false; // on this connection: what is known is not only what one before told
  #supported = false;

  /** conn: the connection to ask on, undefined while there is none. changed: something is known that was not. */
  constructor(conn: () => Connection | undefined, changed: () => void, random: () => number) {
    this.#conn = conn;
    this.#changed = changed;
    this.#random = random;
  }

  /** What is known of a user; undefined if that is nothing now. */
  of(userId: string): Presence | undefined {
    return this.#known.get(userId);
  }

  /** Watches until the returned function is called. */
  watch(watch: Watch): () => void {
    this.#watches.add(watch);
    this.#askSoon();
    return () => {
      this.#watches.delete(watch);
      this.#askSoon();
    };
  }

  /** There is a new connection, which watches nobody yet. */
  online(features: readonly string[]): void {
    this.#supported = features.includes("presence");
    this.#asked = "";
    this.#answered = false;
    if (!this.#supported) this.#forget();
    this.#timers.cancel("ask"); // It may be a wait that the connection before asked for.
    this.#askSoon();
  }

  /** Nothing is known any more. */
  offline(): void {
    this.#timers.clear();
    this.#asked = "";
    this.#answered = false;
    this.#forget();
  }

  #forget(): void {
    if (this.#known.size === 0) return;
    this.#known.clear();
    this.#changed();
  }

  /** The server told of users. */
  told(frame: PresenceFrame): void {
    for (const { userId, online, classes, lastSeenMs } of frame.users) {
      this.#known.set(userId, { online, classes: [...classes], lastSeenAt: Number(lastSeenMs) });
    }
    if (frame.users.length > 0) this.#changed();
  }

  #askSoon(): void {
    if (!this.#timers.has("ask")) this.#timers.set("ask", gatherMs, () => this.#ask());
  }

  #ask(): void {
    const conn = this.#conn();
    if (!conn || !this.#supported) return;
    const users = new Set<string>();
    const conversations = new Set<string>();
    for (const watch of this.#watches) {
      for (const user of watch.users ?? []) if (users.size < watchedUsers) users.add(user);
      for (const id of watch.conversations ?? []) if (conversations.size < watchedConversations) conversations.add(id);
    }
    const value = create(WatchPresenceSchema, { userIds: [...users].sort(), conversationIds: [...conversations].sort() });
    const question = JSON.stringify([value.userIds, value.conversationIds]);
    if (question === this.#asked || (question === "[[],[]]" && this.#asked === "")) return;
    this.#asked = question;
    if (conversations.size === 0) for (const user of this.#known.keys()) if (!users.has(user)) this.#known.delete(user);
    conn.request({ case: "watchPresence", value }, (answer) => {
      if (!answer || question !== this.#asked) return; // Another question follows.
      if (answer.kind.case === "presence") {
        this.#answered = true;
        return this.told(answer.kind.value);
      }
      if (answer.kind.case !== "error" || !answer.kind.value.retryable) {
        if (!this.#answered) this.#forget(); // Nobody is watched on this connection, so nothing would change it.
        return;
      }
      this.#asked = "";
      const wait = answer.kind.value.retryAfterMs || retryMs;
      this.#timers.set("ask", wait * (1 + this.#random()), () => this.#ask());
    });
  }
}

/** Tells that the user types, and remembers who else does. */
export class Typings {
  #conn: () => Connection | undefined;
  #changed: (conversation: Conversation) => void;
  #timers = new Timers();
  #told = new Map<string, number>();
  #supported = false;

  /** conn: the connection to tell on. changed: somebody began or stopped typing. */
  constructor(conn: () => Connection | undefined, changed: (conversation: Conversation) => void) {
    this.#conn = conn;
    this.#changed = changed;
  }

  /** There is a new connection. What was told on the one before may not have left. */
  online(features: readonly string[]): void {
    this.#supported = features.includes("typing");
    this.#told.clear();
  }

  /** The user types; call it with each key. */
  tell(conversation: Conversation): void {
    const conn = this.#conn();
    const now = Date.now();
    const last = this.#told.get(conversation.id) ?? 0;
    if (!conn || !this.#supported || conversation.id === "" || now - last < typingMs / 2) return;
    this.#told.set(conversation.id, now);
    conn.write({ case: "typing", value: create(TypingSchema, { conversationId: conversation.id }) });
  }

  /** The user sent what it typed. */
  sent(conversation: Conversation): void {
    this.#told.delete(conversation.id);
  }

  /** Another user types. */
  began(conversation: Conversation, userId: string): void {
    conversation.typing.add(userId);
    this.#timers.set(`${conversation.id} ${userId}`, typingMs, () => this.ended(conversation, userId));
    this.#changed(conversation);
  }

  /** It has written, or has not typed for a while. */
  ended(conversation: Conversation, userId: string): void {
    if (!conversation.typing.delete(userId)) return;
    this.#timers.cancel(`${conversation.id} ${userId}`);
    this.#changed(conversation);
  }

  /** Nobody is known to type any more. */
  offline(conversations: Iterable<Conversation>): void {
    this.#timers.clear();
    this.#told.clear();
    for (const conversation of conversations) conversation.typing.clear();
  }
}
