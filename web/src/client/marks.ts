// Delivery acks and read marks: gathered, so that many messages cost few frames.

import { create } from "@bufbuild/protobuf";
import { AckRangeSchema, DeliveryAckSchema, type Receipt, ReadSchema } from "../gen/imd/client/v1/client_pb.js";
import type { Connection } from "./connection.js";
import { type Conversation, receiptMembers } from "./conversation.js";
import { Timers } from "./timers.js";

const ackEntries = 32;
const ackDelayMs = 250;
/** In groups where nobody sees the receipts of others, at most: their members acknowledge at some time of its second half, not all at once. */
const ackDelayLargeMs = 2_000;
const readIntervalMs = 1_000;

/** What a user's device tells of what it holds and what was read. */
export class Marks {
  #conn: () => Connection | undefined;
  #receipt: (receipt: Receipt) => void;
  #timers = new Timers();
  #ackable = new Set<Conversation>();
  #fresh = 0;
  #late = false; // The timer is that of a large group.
  #reads = new Map<Conversation, number>();
  #readAt = 0;

  /** conn: the connection to write on, undefined while there is none. receipt: takes the answers to read marks. */
  constructor(conn: () => Connection | undefined, receipt: (receipt: Receipt) => void) {
    this.#conn = conn;
    this.#receipt = receipt;
  }

  /** So many entries were newly shown in a conversation. */
  shown(conversation: Conversation, count: number): void {
    if (!conversation.timeline.ackDue) return;
    this.#ackable.add(conversation);
    this.#fresh += count;
    if (this.#fresh >= ackEntries) return this.#ack();
    const large = conversation.memberCount > receiptMembers;
    if (this.#timers.has("ack") && (large || !this.#late)) return;
    this.#late = large;
    this.#timers.set("ack", large ? ackDelayLargeMs * (1 - Math.random() / 2) : ackDelayMs, () => this.#ack());
  }

  /** The user has read up to seq. */
  read(conversation: Conversation, seq: number): void {
    this.#reads.set(conversation, seq);
    this.#readSoon();
  }

  /** There is a new connection: what was not answered is told again. */
  online(): void {
    this.#fresh = 0;
    this.#readSoon();
  }

  /** Nothing can be told now; what is due stays due. */
  offline(): void {
    this.#timers.clear();
  }

  /** Nothing is to be told of a conversation any more. */
  forget(conversation: Conversation): void {
    this.#ackable.delete(conversation);
    this.#reads.delete(conversation);
  }

  #ack(): void {
    this.#timers.cancel("ack");
    const conn = this.#conn();
    if (!conn) return;
    const ranges = [...this.#ackable].flatMap((c) =>
      c.timeline.takeAcks().map((r) => create(AckRangeSchema, { conversationId: c.id, afterSeq: BigInt(r.after), seq: BigInt(r.seq) })),
    );
    this.#ackable.clear();
    this.#fresh = 0;
    if (ranges.length > 0) conn.write({ case: "ack", value: create(DeliveryAckSchema, { ranges }) });
  }

  #readSoon(): void {
    if (this.#reads.size === 0 || this.#timers.has("read") || !this.#conn()) return;
    this.#timers.set("read", this.#readAt + readIntervalMs - Date.now(), () => this.#readNow());
  }

  #readNow(): void {
    const conn = this.#conn();
    if (!conn) return;
    this.#readAt = Date.now();
    for (const [conversation, seq] of this.#reads) {
      const value = create(ReadSchema, { conversationId: conversation.id, seq: BigInt(seq) });
      conn.request({ case: "read", value }, (answer) => {
        if (!answer) return; // Told again on the next connection.
        if (this.#reads.get(conversation) === seq) this.#reads.delete(conversation);
        if (answer.kind.case === "receipt") this.#receipt(answer.kind.value);
      });
    }
  }
}
