// The outbox: own messages in the order of writing, until the server has said
// what became of them. Pure: frames and answers are passed in and out, time
// comes in as a number in milliseconds.

import type { Content } from "./model.js";

/** A message that is not known to be stored. */
export interface OutboxItem {
  /** UUID version 4 or 7, lower case; made once. */
  clientMessageId: string;
  /** The conversation's id, or "@" and the peer's user id while it is not known. */
  conversation: string;
  /** Set if the message names the user instead of the conversation. */
  toUser: string;
  content: Content;
  /** Milliseconds since 1970 of writing. */
  at: number;
  /** It may have been sent before. */
  resend: boolean;
  /** Why the server refused it for good; empty = it did not. */
  failed: string;
}

/** What to write: the item, and whether it begins a run anew. */
export interface OutboxSend {
  item: OutboxItem;
  frameId: number;
  runStart: boolean;
}

/** An answer to a send, reduced to what decides. */
export interface OutboxAnswer {
  frameId: number;
  clientMessageId: string;
  status: "ok" | "retry" | "fail";
  reason: string;
  retryAfterMs: number;
}

/** The most unanswered sends of a connection. */
export const unansweredLimit = 32;
const retryBaseMs = 500;
const retryCapMs = 30_000;

interface Lane {
  items: OutboxItem[];
  /** Nothing is sent before this time. */
  holdUntil: number;
  refusals: number;
  /** What the server waits for since it answered RETRY; empty = nothing. */
  refused: string;
  runStart: boolean;
}

/** Own unsent messages, by conversation and in order. */
export class Outbox {
  #lanes = new Map<string, Lane>();
  #sent = new Map<string, number>();
  #failed = new Map<string, OutboxItem>();

  /** How many messages wait, those that failed not counted. */
  get size(): number {
    let size = 0;
    for (const lane of this.#lanes.values()) size += lane.items.length;
    return size;
  }

  /** How many sends have no answer yet. */
  get unanswered(): number {
    return this.#sent.size;
  }

  /** All messages, those that failed too, in order of writing. */
  get items(): OutboxItem[] {
    const items = [...this.#lanes.values()].flatMap((lane) => lane.items);
    return [...items, ...this.#failed.values()].sort((a, b) => a.at - b.at);
  }

  /** Appends a message, or one of a former life of the program. */
  add(item: OutboxItem): void {
    if (item.failed) this.#failed.set(item.clientMessageId, item);
    else this.#lane(item.conversation).items.push(item);
  }

  /**
   * The sends to write now, oldest first, each noted as sent. nextFrameId makes
   * the id of each frame.
   */
  take(now: number, nextFrameId: () => number): OutboxSend[] {
    const sends: OutboxSend[] = [];
    for (const lane of this.#lanes.values()) {
      if (now < lane.holdUntil) continue;
      for (const item of lane.items) {
        if (this.#sent.size >= unansweredLimit) return sends;
        if (this.#sent.has(item.clientMessageId)) continue;
        const frameId = nextFrameId();
        this.#sent.set(item.clientMessageId, frameId);
        sends.push({ item: { ...item }, frameId, runStart: lane.runStart });
        lane.runStart = false;
        item.resend = true;
      }
    }
    return sends;
  }

  /** When a held conversation may go on; undefined = none is held. */
  wakeAt(now: number): number | undefined {
    let at: number | undefined;
    for (const lane of this.#lanes.values()) {
      if (lane.items.length > 0 && lane.holdUntil > now) at = Math.min(at ?? lane.holdUntil, lane.holdUntil);
    }
    return at;
  }

  /**
   * Takes an answer. An answer to a former copy is ignored unless it says
   * stored. Returns the item it ends or fails; undefined if it goes on or is
   * not ours.
   */
  answer(answer: OutboxAnswer, now: number): OutboxItem | undefined {
    const current = this.#sent.get(answer.clientMessageId) === answer.frameId;
    if (answer.status === "ok") return this.settle(answer.clientMessageId);
    if (!current) return undefined;
    return answer.status === "fail" ? this.#fail(answer) : this.#retry(answer, now);
  }

  /** The message is stored: an ACK_OK or an entry said so. Returns it if it was here. */
  settle(clientMessageId: string): OutboxItem | undefined {
    const failed = this.#failed.get(clientMessageId);
    if (failed) {
      this.#failed.delete(clientMessageId);
      return failed;
    }
    const item = this.#find(clientMessageId);
    if (!item) return undefined;
    const lane = this.#lane(item.conversation);
    // Stored after all, without being sent again: the server still waits for it.
    if (lane.refused === clientMessageId && !this.#sent.has(clientMessageId)) this.#giveUpRefused(lane);
    this.#remove(clientMessageId);
    if (lane.refused === "") {
      lane.refusals = 0;
      lane.holdUntil = 0;
    }
    return item;
  }

  /** Sends a failed message again, behind what waits now. Returns it if it had failed. */
  retry(clientMessageId: string): OutboxItem | undefined {
    const item = this.#failed.get(clientMessageId);
    if (!item) return undefined;
    this.#failed.delete(clientMessageId);
    const again = { ...item, failed: "", resend: true };
    this.#lane(item.conversation).items.push(again);
    return again;
  }

  /**
   * The user gives a message up. If the server waits for it, the next one of
   * the conversation says so. It may appear nevertheless if it was stored.
   */
  withdraw(clientMessageId: string): OutboxItem | undefined {
    const failed = this.#failed.get(clientMessageId);
    if (failed) {
      this.#failed.delete(clientMessageId);
      return failed;
    }
    const item = this.#find(clientMessageId);
    if (!item) return undefined;
    const lane = this.#lane(item.conversation);
    if (lane.refused === clientMessageId) this.#giveUpRefused(lane);
    this.#remove(clientMessageId);
    return item;
  }

  /** The connection is gone: everything goes again on the next one. */
  disconnected(): void {
    this.#sent.clear();
    for (const lane of this.#lanes.values()) {
      lane.holdUntil = 0;
      lane.refused = "";
      lane.runStart = false;
    }
  }

  /** The id of a conversation named by its peer became known. Returns the messages that moved. */
  rename(from: string, to: string): OutboxItem[] {
    const moved: OutboxItem[] = [];
    for (const [id, item] of this.#failed) {
      if (item.conversation !== from) continue;
      this.#failed.set(id, { ...item, conversation: to });
      moved.push(this.#failed.get(id)!);
    }
    const lane = this.#lanes.get(from);
    if (!lane) return moved;
    this.#lanes.delete(from);
    for (const item of lane.items) item.conversation = to;
    const there = this.#lanes.get(to);
    if (there) there.items.push(...lane.items);
    else this.#lanes.set(to, lane);
    return moved.concat(lane.items);
  }

  #retry(answer: OutboxAnswer, now: number): undefined {
    const item = this.#find(answer.clientMessageId)!;
    const lane = this.#lane(item.conversation);
    const from = lane.items.indexOf(item);
    for (const later of lane.items.slice(from)) this.#sent.delete(later.clientMessageId);
    if (answer.reason === "behind") {
      // Nothing older of ours is left, so what the server waits for was given up.
      if (from === 0) lane.runStart = true;
      lane.holdUntil = now + answer.retryAfterMs;
      return undefined;
    }
    lane.refused = item.clientMessageId;
    const base = answer.retryAfterMs || retryBaseMs;
    const told = answer.reason === "busy" || answer.reason === "rate_limited";
    lane.holdUntil = now + (told ? base : Math.min(retryCapMs, base * 2 ** Math.min(lane.refusals, 10)));
    lane.refusals++;
    return undefined;
  }

  #giveUpRefused(lane: Lane): void {
    lane.refused = "";
    lane.runStart = true;
    lane.holdUntil = 0;
  }

  #fail(answer: OutboxAnswer): OutboxItem | undefined {
    const item = this.#remove(answer.clientMessageId);
    if (!item) return undefined;
    const failed = { ...item, failed: answer.reason || "internal" };
    this.#failed.set(failed.clientMessageId, failed);
    return failed;
  }

  #find(clientMessageId: string): OutboxItem | undefined {
    for (const lane of this.#lanes.values()) {
      const item = lane.items.find((i) => i.clientMessageId === clientMessageId);
      if (item) return item;
    }
    return undefined;
  }

  #remove(clientMessageId: string): OutboxItem | undefined {
    const item = this.#find(clientMessageId);
    if (!item) return undefined;
    const lane = this.#lane(item.conversation);
    lane.items.splice(lane.items.indexOf(item), 1);
    this.#sent.delete(clientMessageId);
    if (lane.refused === clientMessageId) lane.refused = "";
    return item;
  }

  #lane(conversation: string): Lane {
    let lane = this.#lanes.get(conversation);
    if (!lane) {
      lane = { items: [], holdUntil: 0, refusals: 0, refused: "", runStart: false };
      this.#lanes.set(conversation, lane);
    }
    return lane;
  }
}
