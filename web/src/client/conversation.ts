// One conversation as a program sees it: its description, its members'
// receipts and its timeline.

import { digestTerm } from "./digest.js";
import { ConversationKind, type Entry, EntryKind, MemberAction, type Receipt, Role, type State } from "./model.js";
import { type Item, Timeline } from "./timeline.js";

/** Further behind than this, the newest page is taken and what lies between is a gap. */
const farBehind = 500;

/** Above this many members nobody sees the receipts of others. */
export const receiptMembers = 100;
/** The time for each member of a larger group over which its clients spread what they read because of one hint, and the most of it. */
const pullSpreadMs = 0.1;
const maxPullSpreadMs = 1_000;

/** How far a message of one's own has come. */
export type Mark = "sent" | "delivered" | "read";

/** A group's name on one line that moves nothing around it: control characters become spaces, and signs that turn the writing of what follows are left out. */
export function plainName(name: string): string {
  return name
    .replace(/[\p{Cc}\u2028\u2029]+/gu, " ")
    .replace(/[\u202a-\u202e\u2066-\u2069]/gu, "")
    .trim();
}

/** What is known of a conversation. Read it freely; change it through Client only. */
export class Conversation {
  /** The server's id; empty for a direct conversation that nobody has written in yet. */
  id = "";
  kind: ConversationKind;
  name = "";
  /** direct: the other user. */
  peerId = "";
  /** Unspecified = not a member any more. */
  role = Role.MEMBER;
  closed = false;
  memberCount = 0;
  /** The newest message, also if the timeline does not hold it. */
  lastMessage: Entry | undefined;
  /** How far the others have received and read, by user. */
  readonly receipts = new Map<string, Receipt>();
  /** Who of the others types now. */
  readonly typing = new Set<string>();
  readonly timeline: Timeline;
  /** What it adds to the digest of heads, by what a sync told last; 0 = the user is no member. */
  digestTerm = 0n;
  /** A page of older entries is being read. */
  loading = false;
  /** The gaps that are being read, by their first seq. */
  readonly loadingGaps = new Set<number>();
  /** The head that the description is of; entries up to it are already in it. */
  #describedTo = 0;
  /** Where in the spread of a hint this device reads. */
  readonly #place = Math.random();

  constructor(
    readonly self: string,
    kind: ConversationKind,
  ) {
    this.kind = kind;
    this.timeline = new Timeline(self, { farBehind });
  }

  /** The name of the conversation among those of this client: its id, or "@" and the peer. */
  get key(): string {
    return this.id || `@${this.peerId}`;
  }

  /** What to call it: the group's name as plainName gives it, or the other user. */
  get title(): string {
    return this.kind === ConversationKind.DIRECT ? this.peerId : plainName(this.name) || this.id;
  }

  /** Whether a message can be written here. */
  get writable(): boolean {
    return this.role !== Role.UNSPECIFIED && !this.closed && this.kind !== ConversationKind.SYSTEM;
  }

  /** What to show, from old to new. The same array until something changes. */
  get items(): readonly Item[] {
    return this.timeline.items;
  }

  /** Milliseconds since 1970 of the newest message or local message, for the order of a list; 0 = none. */
  get activityAt(): number {
    const last = this.timeline.items.at(-1);
    const local = last?.kind === "local" ? last.local.at : 0;
    const newest = this.timeline.entries.at(-1)?.at ?? 0;
    return Math.max(local, newest, this.lastMessage?.at ?? 0);
  }

  /** How far a message of one's own has come; in a group, with every other member. */
  mark(seq: number): Mark {
    const { delivered, read, of } = this.reach(seq);
    if (of > 0 && read >= of) return "read";
    return of > 0 && delivered >= of ? "delivered" : "sent";
  }

  /** How many of the other members have received and read up to seq. */
  reach(seq: number): { delivered: number; read: number; of: number } {
    let delivered = 0;
    let read = 0;
    for (const receipt of this.receipts.values()) {
      if (receipt.deliveredSeq >= seq) delivered++;
      if (receipt.readSeq >= seq) read++;
    }
    const others = this.kind === ConversationKind.DIRECT ? 1 : this.memberCount - 1;
    return { delivered, read, of: others > receiptMembers ? 0 : Math.max(others, 0) };
  }

  /** Takes over a state of sync, without its page. */
  describe(state: State): void {
    this.id = state.conversationId;
    this.kind = state.kind;
    this.name = state.name;
    this.peerId = state.peerId;
    this.role = state.role;
    this.closed = state.closed;
    this.#describedTo = state.headSeq;
    this.digestTerm = state.role === Role.UNSPECIFIED ? 0n : digestTerm(state.conversationId, state.headSeq);
    this.memberCount = state.memberCount;
    if (state.lastMessage && state.lastMessage.seq >= (this.lastMessage?.seq ?? 0)) this.lastMessage = state.lastMessage;
    for (const receipt of state.receipts) this.applyReceipt(receipt);
    this.#pace();
  }

  /** Spreads what the members of a large group read because of one hint. */
  #pace(): void {
    const spread = this.memberCount > receiptMembers ? Math.min(this.memberCount * pullSpreadMs, maxPullSpreadMs) : 0;
    this.timeline.pace(this.#place * spread);
  }

  /** Takes the receipt of another member; it never goes back. */
  applyReceipt(receipt: Receipt): void {
    if (receipt.userId === this.self) return;
    const known = this.receipts.get(receipt.userId);
    this.receipts.set(receipt.userId, {
      userId: receipt.userId,
      deliveredSeq: Math.max(receipt.deliveredSeq, receipt.readSeq, known?.deliveredSeq ?? 0),
      readSeq: Math.max(receipt.readSeq, known?.readSeq ?? 0),
    });
  }

  /** Takes from a newly shown entry what it says of the conversation itself. */
  observe(entry: Entry): void {
    if (entry.kind === EntryKind.MESSAGE && entry.seq > (this.lastMessage?.seq ?? 0)) this.lastMessage = entry;
    if (entry.seq <= this.#describedTo) return;
    if (entry.conversationChange?.name !== undefined) this.name = entry.conversationChange.name;
    if (entry.conversationChange?.closed !== undefined) this.closed = entry.conversationChange.closed;
    if (entry.memberChange) this.#observeMembers(entry.memberChange.action, entry.memberChange.userIds, entry.memberChange.role);
    this.#pace();
  }

  #observeMembers(action: MemberAction, userIds: string[], role: Role): void {
    const self = userIds.includes(this.self);
    switch (action) {
      case MemberAction.ADDED:
        this.memberCount += userIds.length;
        if (self) this.role = role || Role.MEMBER;
        break;
      case MemberAction.REMOVED:
      case MemberAction.LEFT:
        this.memberCount = Math.max(0, this.memberCount - userIds.length);
        for (const user of userIds) this.receipts.delete(user);
        if (self) this.role = Role.UNSPECIFIED;
        break;
      case MemberAction.ROLE:
        if (self) this.role = role;
        break;
      default:
    }
  }
}
