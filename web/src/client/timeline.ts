// The pure merge of one conversation: events in, what to show and what to do
// out. It knows no socket, no timer and no store; time comes in as a number.

import { type Content, type Entry, EntryKind, MemberAction, type Page } from "./model.js";

/** An inclusive stretch of seqs of which everything that may be seen is here; empty if to is the lower. */
export interface Range {
  from: number;
  to: number;
}

/** A stretch to acknowledge: this device holds all of (afterSeq, seq]. */
export interface AckRange {
  afterSeq: number;
  seq: number;
}

/** What to ask history for: the entries between the two, both excluded; beforeSeq 0 = to the head. */
export interface HistoryRange {
  afterSeq: number;
  beforeSeq: number;
}

/** A message of one's own that is not known to be stored. */
export interface LocalMessage {
  clientMessageId: string;
  content: Content;
  /** Milliseconds since 1970 of writing. */
  at: number;
  state: "pending" | "failed";
  /** Why it failed: a reason of the error table; empty while pending. */
  reason: string;
}

/** One line to show. key is stable: a pending message keeps it when it is stored. */
export type Item =
  | { kind: "message"; key: string; entry: Entry; mine: boolean }
  | { kind: "local"; key: string; local: LocalMessage }
  | { kind: "change"; key: string; entry: Entry }
  | { kind: "gap"; key: string; afterSeq: number; beforeSeq: number };

/** What became of an entry. */
export type Outcome = "shown" | "known" | "aside" | "dropped";

/** The most entries put aside behind a gap; more are dropped and read again later. */
export const asideLimit = 256;
/** How long a gap may be open before it is read with history, in milliseconds. */
export const gapPatienceMs = 200;
/** The unread count is counted up to this and shown as 999+. */
export const unreadLimit = 1000;

/** The merged log of one conversation as one device sees it. */
export class Timeline {
  /** Everything up to here is shown or was chosen to be loaded on demand. */
  have = 0;
  /** The first have; what lies below it is hidden or older. */
  start = 0;
  /** The newest entry heard of. */
  head = 0;
  readSeq = 0;
  unread = 0;
  /** False until a state or the own ADDED told the first have; until then everything is put aside. */
  known = false;

  #entries: Entry[] = [];
  #ranges: Range[] = [{ from: 1, to: 0 }];
  #bottom = false;
  #aside = new Map<number, Entry>();
  #gapSince: number | undefined;
  #locals = new Map<string, LocalMessage>();
  #countedTo = 0;
  #acked: number | undefined;
  #ackAgain = false;
  #asideAcked = new Set<number>();
  #items: Item[] | undefined;

  constructor(
    /** The user whose device this is. */
    readonly self: string,
  ) {}

  /** The entries held, in rising seq. */
  get entries(): readonly Entry[] {
    return this.#entries;
  }

  /** The stretches held, in rising order; the last one ends at have. */
  get ranges(): readonly Range[] {
    return this.#ranges;
  }

  /** How many entries wait behind a gap. */
  get asideCount(): number {
    return this.#aside.size;
  }

  /** The seqs that wait behind a gap, rising. */
  get asideSeqs(): number[] {
    return [...this.#aside.keys()].sort((a, b) => a - b);
  }

  /** Whether a backward page below the oldest stretch may bring more. */
  get hasOlder(): boolean {
    return this.known && !this.#bottom && this.#ranges[0]!.from > 1;
  }

  /** The seq below which older entries are asked for; 0 = from the head. */
  get oldestSeq(): number {
    const first = this.#ranges[0]!;
    return first.to < first.from && this.head === 0 ? 0 : first.from;
  }

  /** Begins at a first have. Does nothing if the timeline has begun. */
  begin(start: number, now: number): void {
    if (this.known) return;
    this.known = true;
    this.start = start;
    this.have = start;
    this.#ranges = [{ from: start + 1, to: start }];
    this.#takeAside(now);
    this.#touch();
  }

  /**
   * Takes a conversation's head, read position and unread count from a state
   * of sync. Apply the state's page before it.
   */
  applyState(headSeq: number, readSeq: number, unreadCount: number): void {
    this.head = Math.max(this.head, headSeq);
    this.readSeq = Math.max(this.readSeq, readSeq);
    this.#countedTo = Math.max(this.#countedTo, headSeq);
    const newer = this.#entries.filter((e) => e.seq > headSeq && this.#countable(e)).length;
    this.unread = Math.min(unreadCount + newer, unreadLimit);
  }

  /**
   * Whether an answer proves that the log is shorter than this device's have
   * at the time of asking: the store was reset, and the timeline has to be,
   * too. page: only one that was read forward to the head.
   */
  shrunk(haveThen: number, headSeq: number, page?: Page): boolean {
    return this.known && (headSeq < haveThen || (page !== undefined && page.end && page.completeTo < haveThen));
  }

  /** Takes the own receipt: read position, and the server's unread count if it has one. */
  applyRead(readSeq: number, unreadCount: number | undefined): void {
    this.readSeq = Math.max(this.readSeq, readSeq);
    if (unreadCount === undefined) {
      if (this.readSeq >= this.have) this.unread = 0;
      return;
    }
    this.unread = Math.min(unreadCount, unreadLimit);
    this.#countedTo = Math.max(this.#countedTo, this.have);
  }

  /** Notes that the log has entries up to seq. */
  applyHead(seq: number): void {
    this.head = Math.max(this.head, seq);
  }

  /** Merges one entry of a deliver or of an own ACK_OK. now is in milliseconds. */
  applyEntry(entry: Entry, now: number): Outcome {
    this.head = Math.max(this.head, entry.seq);
    if (!this.known) this.#beginFrom(entry);
    if (this.known && entry.seq <= this.have) {
      this.#settleLocal(entry);
      this.#ackAgain = true;
      return "known";
    }
    if (!this.known || entry.prevSeq > this.have) return this.#putAside(entry, now);
    this.#advance(entry);
    this.#takeAside(now);
    return "shown";
  }

  /**
   * Merges a page. jump allows have to leap to a page that does not touch it;
   * what lies between is then a gap, loaded on demand. bottom says that
   * nothing lies below the page if it has its end mark.
   */
  applyPage(page: Page, now: number, options: { jump?: boolean; bottom?: boolean } = {}): void {
    if (!this.known) return;
    if (options.bottom && page.end) this.#bottom = true;
    const { completeFrom: from, completeTo: to } = page;
    const touches = from <= this.have + 1;
    for (const entry of page.entries) this.#settleLocal(entry);
    if (to >= from && (touches || options.jump)) {
      const before = this.have;
      for (const entry of page.entries) this.#insert(entry, before);
      this.#cover({ from, to });
      this.have = Math.max(this.have, to);
      this.head = Math.max(this.head, this.have);
      this.#takeAside(now);
    }
    this.#touch();
  }

  /** Forgets the log and begins anew at the next state; own messages that are not stored stay. */
  reset(): void {
    this.known = false;
    this.have = this.start = this.head = this.readSeq = this.unread = 0;
    this.#entries = [];
    this.#ranges = [{ from: 1, to: 0 }];
    this.#bottom = false;
    this.#aside.clear();
    this.#gapSince = undefined;
    this.#countedTo = 0;
    this.connected();
    this.#touch();
  }

  /** A new connection: the next ack begins where the unbroken stretch begins, so that a lost one heals. */
  connected(): void {
    this.#acked = undefined;
    this.#asideAcked.clear();
  }

  /** Shows a message of one's own before it is stored. */
  addLocal(clientMessageId: string, content: Content, at: number): void {
    this.#locals.set(clientMessageId, { clientMessageId, content, at, state: "pending", reason: "" });
    this.#touch();
  }

  /** Marks an own message as failed with this reason, or as pending again with an empty one. */
  setLocal(clientMessageId: string, reason: string): void {
    const local = this.#locals.get(clientMessageId);
    if (!local) return;
    this.#locals.set(clientMessageId, { ...local, state: reason ? "failed" : "pending", reason });
    this.#touch();
  }

  /** Takes an own message away that is not stored. */
  removeLocal(clientMessageId: string): void {
    if (this.#locals.delete(clientMessageId)) this.#touch();
  }

  /** The history to ask for now, one request at a time; undefined if nothing is missing or a gap may still close by itself. */
  wants(now: number): HistoryRange | undefined {
    if (!this.known) return undefined;
    if (this.#aside.size > 0) {
      if (now < this.#gapSince! + gapPatienceMs) return undefined;
      return { afterSeq: this.have, beforeSeq: this.asideSeqs[0]! };
    }
    return this.head > this.have ? { afterSeq: this.have, beforeSeq: 0 } : undefined;
  }

  /** When wants is worth asking again, in milliseconds; undefined = only after another event. */
  get wakeAt(): number | undefined {
    return this.known && this.#gapSince !== undefined ? this.#gapSince + gapPatienceMs : undefined;
  }

  /** Whether there is something to acknowledge. */
  get ackDue(): boolean {
    if (!this.known) return false;
    return this.#ackAgain || this.have > this.#ackBase() || [...this.#aside.keys()].some((seq) => !this.#asideAcked.has(seq));
  }

  /** What to acknowledge now, and notes it as acknowledged. */
  takeAcks(): AckRange[] {
    if (!this.known) return [];
    const acks: AckRange[] = [];
    const base = this.#ackAgain ? this.#stretchBase() : this.#ackBase();
    if (this.have > base) acks.push({ afterSeq: base, seq: this.have });
    this.#acked = this.have;
    this.#ackAgain = false;
    return acks.concat(this.#asideAcks());
  }

  /** What to show, from old to new. The same array until something changes. */
  get items(): readonly Item[] {
    this.#items ??= this.#buildItems();
    return this.#items;
  }

  #buildItems(): Item[] {
    const items: Item[] = [];
    let range = 0;
    for (const entry of this.#entries) {
      while (range < this.#ranges.length - 1 && entry.seq > this.#ranges[range]!.to) items.push(this.#gapAfter(range++));
      const item = this.#itemOf(entry);
      if (item) items.push(item);
    }
    while (range < this.#ranges.length - 1) items.push(this.#gapAfter(range++));
    for (const local of this.#locals.values()) items.push({ kind: "local", key: local.clientMessageId, local });
    return items;
  }

  #itemOf(entry: Entry): Item | undefined {
    const mine = entry.sender === this.self;
    switch (entry.kind) {
      case EntryKind.MESSAGE:
      case EntryKind.ANNOUNCEMENT:
        return { kind: "message", key: mine && entry.clientMessageId ? entry.clientMessageId : `s${entry.seq}`, entry, mine };
      case EntryKind.MEMBER_CHANGE:
      case EntryKind.CONVERSATION_CHANGE:
        return { kind: "change", key: `s${entry.seq}`, entry };
      default:
        return undefined;
    }
  }

  #gapAfter(range: number): Item {
    const afterSeq = this.#ranges[range]!.to;
    return { kind: "gap", key: `g${afterSeq}`, afterSeq, beforeSeq: this.#ranges[range + 1]!.from };
  }

  /** An own ADDED tells the first have of a conversation not heard of before. */
  #beginFrom(entry: Entry): void {
    const change = entry.memberChange;
    if (change?.action === MemberAction.ADDED && change.userIds.includes(this.self)) this.begin(change.start, 0);
  }

  #putAside(entry: Entry, now: number): Outcome {
    if (this.#aside.has(entry.seq)) return "aside";
    if (this.#aside.size >= asideLimit) return "dropped";
    this.#aside.set(entry.seq, entry);
    this.#gapSince ??= now;
    return "aside";
  }

  /** Shows what was put aside as far as it follows have. */
  #takeAside(now: number): void {
    if (this.#aside.size === 0) return;
    const before = this.have;
    for (const seq of this.asideSeqs) {
      const entry = this.#aside.get(seq)!;
      if (seq > this.have && entry.prevSeq > this.have) break;
      this.#aside.delete(seq);
      if (seq > this.have) this.#advance(entry);
      else this.#settleLocal(entry);
    }
    if (this.#aside.size === 0) this.#gapSince = undefined;
    else if (this.have > before) this.#gapSince = now;
  }

  /** Shows the entry that comes next. */
  #advance(entry: Entry): void {
    const before = this.have;
    this.#insert(entry, before);
    this.#cover({ from: before + 1, to: entry.seq });
    this.have = entry.seq;
    this.#touch();
  }

  #insert(entry: Entry, before: number): void {
    this.#settleLocal(entry);
    if (entry.seq > before) this.#count(entry);
    let at = this.#entries.length;
    while (at > 0 && this.#entries[at - 1]!.seq > entry.seq) at--;
    const held = this.#entries[at - 1];
    if (held?.seq === entry.seq) {
      if (entry.changedSeq > held.changedSeq) this.#entries[at - 1] = entry;
    } else {
      this.#entries.splice(at, 0, entry);
    }
    this.#change(entry);
  }

  /** Applies an edit or a recall to the copy of its target, unless the copy is newer. */
  #change(entry: Entry): void {
    if (entry.kind !== EntryKind.EDIT && entry.kind !== EntryKind.RECALL) return;
    const at = this.#entries.findIndex((e) => e.seq === entry.targetSeq);
    const target = this.#entries[at];
    if (!target || target.changedSeq >= entry.seq) return;
    const { content: _, ...rest } = target;
    const edited = entry.kind === EntryKind.EDIT && entry.content;
    this.#entries[at] = { ...rest, changedSeq: entry.seq, ...(edited && { content: edited }) };
  }

  #count(entry: Entry): void {
    if (entry.seq <= this.#countedTo || !this.#countable(entry)) return;
    this.unread = Math.min(this.unread + 1, unreadLimit);
  }

  #countable(entry: Entry): boolean {
    return entry.countable && entry.sender !== this.self && entry.seq > this.readSeq;
  }

  /** An entry of one's own ends its time as a local message. */
  #settleLocal(entry: Entry): void {
    if (entry.sender === this.self && entry.clientMessageId) this.removeLocal(entry.clientMessageId);
  }

  /** Adds a stretch and joins those that touch. */
  #cover(added: Range): void {
    const ranges = [...this.#ranges.filter((r) => r.to >= r.from), added].sort((a, b) => a.from - b.from);
    const joined: Range[] = [];
    for (const range of ranges) {
      const last = joined.at(-1);
      if (last && range.from <= last.to + 1) last.to = Math.max(last.to, range.to);
      else joined.push({ ...range });
    }
    this.#ranges = joined;
  }

  /** Where the unbroken stretch that ends at have begins. */
  #stretchBase(): number {
    return this.#ranges.at(-1)!.from - 1;
  }

  #ackBase(): number {
    return this.#acked ?? this.#stretchBase();
  }

  /** The stretches behind a gap, each by itself, once. */
  #asideAcks(): AckRange[] {
    const acks: AckRange[] = [];
    for (const seq of this.asideSeqs) {
      const entry = this.#aside.get(seq)!;
      if (this.#asideAcked.has(seq)) continue;
      this.#asideAcked.add(seq);
      const last = acks.at(-1);
      if (last && last.seq === entry.prevSeq) last.seq = seq;
      else acks.push({ afterSeq: entry.prevSeq, seq });
    }
    return acks;
  }

  #touch(): void {
    this.#items = undefined;
  }
}
