// The pure merge of one conversation: events in, what to show and what to do
// out. It knows no socket, no timer and no store; time comes in as a number of
// milliseconds that only rises.

import { type Content, type Entry, EntryKind, MemberAction, type Page, type State } from "./model.js";
import { cutBelow, gapsBetween, type Stretch, union } from "./stretches.js";

/** A stretch to acknowledge: this device holds all of (after, seq]. */
export interface AckRange {
  after: number;
  seq: number;
}

/** What to ask history for: the entries between the two, both excluded. */
export interface HistoryRequest {
  after: number;
  /** 0 = to the head. */
  before: number;
  /** Begin at the upper end. */
  backward: boolean;
  /** With backward: the newest page, which moves have. */
  jump: boolean;
}

/** What an event asks for. */
export interface Effects {
  /** What became part of the timeline at its end, in order; entries of unknown kinds are not among it. */
  show: Entry[];
  /** Messages whose copy was replaced by a newer one. */
  changed: number[];
  /** Client message ids that are known to be stored now. */
  sent: string[];
  /** To be requested; page or historyFailed answers it. */
  history?: HistoryRequest;
  /** The conversation is not known: sync. */
  sync: boolean;
  /** Everything shown before is void. */
  reset: boolean;
}

/** A message of one's own that is not known to be stored. */
export interface LocalMessage {
  clientMessageId: string;
  content: Content;
  /** The message that an edit, recall or reaction is about; 0 = none. */
  targetSeq: number;
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
  | { kind: "gap"; key: string; gap: Stretch };

/** How a timeline may differ from the usual. */
export interface TimelineOptions {
  /** So many of the newest shown entries are held; 0 (default) = all. */
  keep?: number;
  /** Further behind than this, the newest page is taken and the rest is a gap; default: never. */
  farBehind?: number;
}

/** The most entries put aside behind a gap; of more only the seq is remembered. */
export const asideLimit = 256;
/** How long a gap may be open before it is read, in milliseconds; doubles while answers bring no progress. */
export const gapPauseMs = 200;
/** The unread count is counted up to this and shown as 999+. */
export const unreadLimit = 1_000;
const gapPauseMaxMs = 64 * gapPauseMs;

/** The merged log of one conversation as one device sees it. It begins online and with nothing known. */
export class Timeline {
  #options: Required<TimelineOptions>;
  #known = false;
  #start = 0;
  #have = 0;
  /** The newest entry heard of, hints included. */
  #head = 0;
  #stretches: Stretch[] = [];
  #aside: Entry[] = [];
  #entries: Entry[] = [];
  /** The entries are complete from here on, gaps aside. */
  #floor = 0;
  #locals: LocalMessage[] = [];
  /** Own messages with an ACK_OK, by client message id, while they wait above a gap. */
  #stored = new Map<string, number>();

  #paused = false;
  #needNewest = false;
  #asking: HistoryRequest | undefined;
  #askedHead = 0;
  #gapAt: number | undefined;
  #pace = 0; // On top of the wait for a gap and after a hint.
  #gapPause = gapPauseMs;

  #ackBase = 0;
  #ackDone = 0;
  #ackTaken = false;
  #ackExtra: AckRange[] = [];

  #readSeq = 0;
  #unread = 0;
  #countedTo = 0;
  #items: readonly Item[] | undefined;

  constructor(
    /** The user whose device this is. */
    readonly self: string,
    options: TimelineOptions = {},
  ) {
    this.#options = { keep: 0, farBehind: Number.POSITIVE_INFINITY, ...options };
  }

  /** Whether the first have is known. */
  get known(): boolean {
    return this.#known;
  }

  /** The seq up to which everything is here. */
  get have(): number {
    return this.#have;
  }

  /** The seq up to which the user has read. */
  get readSeq(): number {
    return this.#readSeq;
  }

  /** How many entries are unread, at most unreadLimit. */
  get unread(): number {
    return this.#unread;
  }

  /** The messages and changes held, in rising seq. */
  get entries(): readonly Entry[] {
    return this.#entries;
  }

  /** The messages of one's own that are not known to be stored, in the order of writing. */
  get locals(): readonly LocalMessage[] {
    return this.#locals;
  }

  /** The seqs that wait above a gap, rising. */
  get aside(): number[] {
    return this.#aside.map((e) => e.seq);
  }

  /** What is left out between the entries, lowest first. */
  get gaps(): Stretch[] {
    return gapsBetween(this.#stretches, this.#floor);
  }

  /** Whether there may be something before the first entry. */
  get older(): boolean {
    return this.#known && this.#floor > this.#start + 1;
  }

  /** The request for the page before the first entry. */
  get olderRequest(): HistoryRequest {
    return { after: this.#start, before: this.#floor, backward: true, jump: false };
  }

  /** When tick is wanted; undefined = not. */
  get wakeAt(): number | undefined {
    return this.#gapAt;
  }

  /** Whether takeAcks would return something. */
  get ackDue(): boolean {
    return this.#ackExtra.length > 0 || (this.#known && this.#have > this.#ackDone);
  }

  /** What to show, from old to new. The same array until something changes. */
  get items(): readonly Item[] {
    this.#items ??= this.#buildItems();
    return this.#items;
  }

  // --- Events ---

  /** Sets the cursor that a device kept: everything in (from, have] is on it. Before any other event. */
  restore(start: number, from: number, have: number): void {
    this.#begin(start, { from: from + 1, to: have });
  }

  /** Takes the entries of a deliver. */
  deliver(now: number, entries: readonly Entry[]): Effects {
    const fx = noEffects();
    for (const entry of entries) this.#offer(entry, fx);
    return this.#settle(now, fx);
  }

  /** Takes an ACK_OK: with the content that was sent, it stands for the entry. */
  sendAck(now: number, ack: Pick<Entry, "clientMessageId" | "messageId" | "seq" | "prevSeq" | "at">): Effects {
    const local = this.#locals.find((l) => l.clientMessageId === ack.clientMessageId);
    if (!local) return this.head(now, ack.seq);
    const fx = noEffects();
    this.#stored.set(ack.clientMessageId, ack.seq);
    this.#offer(
      { ...ack, kind: EntryKind.MESSAGE, sender: this.self, content: local.content, targetSeq: local.targetSeq, countable: true, changedSeq: 0 },
      fx,
    );
    return this.#settle(now, fx);
  }

  /**
   * Makes the timeline wait for ms longer than it would before it asks because of a head or a gap, so that the many members of a group do not
   * ask all at once. What was asked for goes on without a wait.
   */
  pace(ms: number): void {
    this.#pace = Math.max(0, ms);
  }

  /** Notes that the log has entries up to seq. */
  head(now: number, seq: number): Effects {
    const fx = noEffects();
    if (!this.#known) {
      this.#head = Math.max(this.#head, seq); // The state may have been read before it.
      return { ...fx, sync: true };
    }
    if (seq > this.#have && seq > this.#head) {
      this.#head = seq;
      if (!this.#asking && !this.#paused) this.#gapAt = Math.min(this.#gapAt ?? Infinity, now + this.#pace);
    }
    return this.#settle(now, fx);
  }

  /** Time has passed; see wakeAt. */
  tick(now: number): Effects {
    return this.#settle(now, noEffects());
  }

  /** There is no connection: nothing is requested until synced, and an open request will not be answered. */
  disconnected(): void {
    this.#paused = true;
    this.#asking = undefined;
    this.#gapAt = undefined;
  }

  /** A new connection stands and its sync runs. An ack that may have been lost with the last one is due again. */
  connected(): void {
    this.disconnected();
    this.#gapPause = gapPauseMs;
    this.#ackExtra = [];
    if (this.#known) {
      this.#ackBase = this.#from();
      if (this.#ackTaken) this.#ackDone = this.#ackBase;
    }
    this.#ackTaken = false;
  }

  /** The sync has ended. */
  synced(now: number): Effects {
    this.#paused = false;
    if (this.#behind()) this.#gapAt = now;
    return this.#settle(now, noEffects());
  }

  /** The open request failed: it is made again, later each time and not before retryAfterMs. */
  historyFailed(now: number, retryAfterMs: number): void {
    if (!this.#asking) return;
    this.#asking = undefined;
    this.#gapAt = now + Math.max(this.#gapPause, retryAfterMs);
    this.#gapPause = Math.min(2 * this.#gapPause, gapPauseMaxMs);
  }

  /**
   * The store has another history: everything read is void. What was not
   * stored stays, except what is about a message; the ids of that are returned.
   */
  resync(): string[] {
    this.#void();
    this.#known = false;
    this.#start = this.#readSeq = 0;
    const dropped = this.#locals.filter((l) => l.targetSeq !== 0).map((l) => l.clientMessageId);
    this.#locals = this.#locals.filter((l) => l.targetSeq === 0);
    return dropped;
  }

  /** Takes the user's own receipt. unreadCount: undefined if it has none. */
  receipt(readSeq: number, unreadCount: number | undefined): void {
    this.#readSeq = Math.max(this.#readSeq, readSeq);
    if (unreadCount !== undefined) this.#count(unreadCount, Math.max(this.#have, this.#head));
  }

  /** The user has read up to seq here; the server's number comes later. */
  read(seq: number): void {
    this.#readSeq = Math.max(this.#readSeq, seq);
    if (seq >= this.#have) this.#unread = 0;
  }

  /** Takes what sync tells. cursor: the have that the sync named; undefined = none, the page then holds the newest entries. */
  state(now: number, cursor: number | undefined, state: State): Effects {
    const fx = noEffects();
    this.#touch();
    if (!this.#known) {
      this.#begin(state.start, { from: state.start + 1, to: state.start });
      this.#needNewest = state.headSeq > state.start;
    } else if (cursor !== undefined && state.headSeq < cursor) {
      this.#start = state.start;
      this.#replaced(fx);
      this.#needNewest = state.headSeq > state.start;
    } else if (state.start > this.#start) {
      this.#raise(state.start);
    }
    if (state.headSeq > this.#have) this.#head = Math.max(this.#head, state.headSeq);
    this.#readSeq = Math.max(this.#readSeq, state.readSeq);
    this.#count(state.unreadCount, state.headSeq);
    if (state.page && !fx.reset) this.#statePage(cursor, state.page, fx);
    return this.#settle(now, fx);
  }

  /** Takes the answer to a history request: one of the effects, or one of the caller's own, such as olderRequest. */
  page(now: number, request: HistoryRequest, page: Page): Effects {
    const fx = noEffects();
    const mine = this.#asking !== undefined && sameRequest(this.#asking, request);
    if (mine) this.#asking = undefined;
    if (!this.#known) return fx;
    this.#touch();
    const before = this.#have;
    if (request.jump) this.#jump(page, fx);
    else if (request.backward) this.#fill(page, fx);
    else if (page.end && request.before === 0 && page.completeTo < request.after) this.#replaced(fx);
    else this.#forward(page, fx);
    if (!request.backward && !fx.reset) this.#concludeForward(request, page, mine);
    this.#takeAside(fx);
    if (mine && (this.#have > before || request.jump || fx.reset)) {
      this.#gapAt = now;
    } else if (mine) {
      this.#gapAt = now + this.#gapPause;
      this.#gapPause = Math.min(2 * this.#gapPause, gapPauseMaxMs);
    }
    return this.#settle(now, fx);
  }

  /** Shows what is being sent as pending. One that failed is pending again. */
  send(message: Omit<LocalMessage, "state" | "reason">): void {
    const at = this.#local(message.clientMessageId);
    if (at >= 0) this.#locals[at] = { ...this.#locals[at]!, state: "pending", reason: "" };
    else this.#locals.push({ ...message, state: "pending", reason: "" });
    this.#touch();
  }

  /** Marks what was refused for good. */
  fail(clientMessageId: string, reason: string): void {
    const at = this.#local(clientMessageId);
    if (at >= 0) this.#locals[at] = { ...this.#locals[at]!, state: "failed", reason };
    this.#touch();
  }

  /** Takes back what is not stored. It may appear nevertheless. */
  withdraw(clientMessageId: string): void {
    this.#locals = this.#locals.filter((l) => l.clientMessageId !== clientMessageId);
    this.#touch();
  }

  /** What may be acknowledged now, and takes it as acknowledged. */
  takeAcks(): AckRange[] {
    const ranges = this.#ackExtra;
    this.#ackExtra = [];
    if (this.#known && this.#have > this.#ackDone) {
      ranges.push({ after: this.#ackBase, seq: this.#have });
      this.#ackBase = this.#ackDone = this.#have;
    }
    if (ranges.length > 0) this.#ackTaken = true;
    return ranges;
  }

  // --- The rule for one entry ---

  #offer(entry: Entry, fx: Effects): void {
    if (!this.#known) {
      const start = this.#ownAdded(entry);
      if (start === undefined) {
        this.#putAside(entry);
        fx.sync = true;
        return;
      }
      this.#begin(start, { from: start + 1, to: start });
    }
    if (entry.seq <= this.#have) return this.#seen(entry, fx);
    if (entry.prevSeq > this.#have) return this.#putAside(entry);
    this.#show(entry, fx);
    this.#takeAside(fx);
  }

  /** The first have that an entry gives to this user. */
  #ownAdded(entry: Entry): number | undefined {
    const change = entry.memberChange;
    return change?.action === MemberAction.ADDED && change.userIds.includes(this.self) ? change.start : undefined;
  }

  /** An entry that comes again: its copy may be newer, its ack may be lost. */
  #seen(entry: Entry, fx: Effects): void {
    this.#takeOwn(entry, fx);
    this.#replace(entry, fx);
    if (entry.seq > this.#from()) {
      this.#ackBase = Math.min(this.#ackBase, entry.seq - 1);
      this.#ackDone = Math.min(this.#ackDone, entry.seq - 1);
      return;
    }
    const held = this.#stretches.find((s) => entry.seq >= s.from && entry.seq <= s.to);
    if (held) this.#ackExtra = [{ after: held.from - 1, seq: held.to }];
  }

  #show(entry: Entry, fx: Effects): void {
    this.#takeOwn(entry, fx);
    this.#advance(entry.seq);
    if (this.#countable(entry, Math.max(this.#readSeq, this.#countedTo))) this.#unread = Math.min(this.#unread + 1, unreadLimit);
    if (entry.kind >= EntryKind.MESSAGE && entry.kind <= EntryKind.REACTION) fx.show.push(entry);
    this.#apply(entry, fx);
    this.#trim();
  }

  #advance(have: number): void {
    this.#have = have;
    this.#stretches.at(-1)!.to = have;
    this.#gapPause = gapPauseMs;
    this.#touch();
  }

  #putAside(entry: Entry): void {
    this.#head = Math.max(this.#head, entry.seq);
    if (entry.sender === this.self && this.#locals.some((l) => l.clientMessageId === entry.clientMessageId)) {
      this.#stored.set(entry.clientMessageId, entry.seq);
    }
    const at = lowerBound(this.#aside, entry.seq);
    if (this.#aside[at]?.seq === entry.seq || this.#aside.length >= asideLimit) return;
    this.#aside.splice(at, 0, entry);
  }

  #takeAside(fx: Effects): void {
    while (this.#aside.length > 0 && this.#aside[0]!.prevSeq <= this.#have) {
      const entry = this.#aside.shift()!;
      if (entry.seq > this.#have) this.#show(entry, fx);
    }
  }

  // --- Requests ---

  #behind(): boolean {
    return this.#known && (this.#needNewest || this.#aside.length > 0 || this.#head > this.#have);
  }

  /** Decides whether to ask for history now or later. */
  #settle(now: number, fx: Effects): Effects {
    if (this.#known) {
      this.#takeAside(fx);
      this.#takeStored(fx);
    }
    if (!this.#behind() || this.#paused || this.#asking) {
      this.#gapAt = undefined;
      return fx;
    }
    this.#gapAt ??= now + this.#gapPause + this.#pace;
    if (now < this.#gapAt) return fx;
    this.#gapAt = undefined;
    this.#askedHead = this.#head;
    this.#asking = this.#next();
    fx.history = this.#asking;
    return fx;
  }

  #next(): HistoryRequest {
    if (this.#needNewest || this.#head - this.#have > this.#options.farBehind) {
      return { after: this.#start, before: 0, backward: true, jump: true };
    }
    const request = { after: this.#have, before: 0, backward: false, jump: false };
    // What is aside is here already, if it reaches to the newest one.
    const newest = this.#aside.at(-1);
    return newest && newest.seq >= this.#head ? { ...request, before: this.#aside[0]!.seq } : request;
  }

  // --- Pages ---

  #statePage(cursor: number | undefined, page: Page, fx: Effects): void {
    if (this.#needNewest) return this.#jump(page, fx);
    if (page.end && cursor !== undefined && page.completeTo < cursor) return this.#replaced(fx);
    this.#forward(page, fx);
    if (!page.end) this.#head = Math.max(this.#head, page.completeTo + 1);
  }

  /** Learns from the end of a page whether there is more. */
  #concludeForward(request: HistoryRequest, page: Page, mine: boolean): void {
    if (!page.end) {
      this.#head = Math.max(this.#head, page.completeTo + 1);
    } else if (request.before === 0 && mine && this.#head === this.#askedHead) {
      // What was promised above the end is not visible to this user.
      this.#head = Math.min(this.#head, this.#have);
    }
  }

  /** A page that begins at or below have + 1; otherwise its entries one by one. */
  #forward(page: Page, fx: Effects): void {
    if (page.completeFrom > this.#have + 1) {
      for (const entry of page.entries) this.#offer(entry, fx);
      return;
    }
    for (const entry of page.entries) {
      if (entry.seq > this.#have) {
        this.#show(entry, fx);
      } else {
        this.#takeOwn(entry, fx);
        this.#replace(entry, fx);
      }
    }
    if (page.completeTo > this.#have) this.#advance(page.completeTo);
  }

  /** A page of the past; have stays. */
  #fill(page: Page, fx: Effects): void {
    const from = Math.max(page.completeFrom, this.#start + 1);
    const to = Math.min(page.completeTo, this.#have);
    if (from > to) {
      if (page.end && page.completeFrom <= this.#start + 1 && page.completeTo >= this.#floor - 1) this.#floor = this.#start + 1;
      return;
    }
    if (to >= this.#floor - 1) this.#floor = Math.min(this.#floor, from);
    for (const entry of page.entries) {
      if (entry.seq < from || entry.seq > to) continue;
      this.#takeOwn(entry, fx);
      if (entry.seq >= this.#floor) this.#apply(entry, fx);
    }
    const before = this.#from();
    this.#stretches = union(this.#stretches, { from, to });
    if (this.#from() < before) this.#ackBase = this.#ackDone = this.#from();
  }

  /** The newest page: have becomes its end, and what lies between is a gap to be loaded on demand. */
  #jump(page: Page, fx: Effects): void {
    this.#needNewest = false;
    if (page.completeFrom > this.#have + 1 && page.completeTo > this.#have) {
      if (this.#entries.length === 0) {
        this.#floor = page.completeFrom;
        this.#stretches = [];
      }
      this.#have = page.completeFrom - 1;
      this.#stretches.push({ from: page.completeFrom, to: this.#have });
      this.#ackBase = this.#ackDone = this.#have;
    }
    this.#forward(page, fx);
    this.#head = Math.max(this.#head, this.#have);
    this.#aside = this.#aside.filter((e) => e.seq > this.#have);
  }

  /** Begins anew after the log turned out to be another one. */
  #replaced(fx: Effects): void {
    const start = this.#start;
    this.#void();
    this.#begin(start, { from: start + 1, to: start });
    this.#needNewest = true;
    fx.reset = true;
  }

  /** Moves the border below which the user sees nothing. */
  #raise(start: number): void {
    this.#start = start;
    this.#entries = this.#entries.filter((e) => e.seq > start);
    if (start > this.#have) {
      this.#have = start;
      this.#stretches = [{ from: start + 1, to: start }];
      this.#ackBase = this.#ackDone = start;
    } else {
      this.#stretches = cutBelow(this.#stretches, start, this.#have);
      this.#ackBase = Math.max(this.#ackBase, this.#from());
      this.#ackDone = Math.max(this.#ackDone, this.#from());
    }
    // What was a gap above a part that is gone now is what comes before the entries.
    this.#floor = Math.max(this.#floor, start + 1, this.#stretches[0]?.from ?? 0);
  }

  #begin(start: number, stretch: Stretch): void {
    this.#known = true;
    this.#start = start;
    this.#have = stretch.to;
    this.#stretches = [stretch];
    this.#floor = stretch.to + 1;
    this.#ackBase = this.#ackDone = stretch.from - 1;
  }

  #void(): void {
    this.#have = this.#head = this.#floor = 0;
    this.#stretches = [];
    this.#aside = [];
    this.#entries = [];
    // What was stored in the log that is void now, and not shown yet.
    this.#locals = this.#locals.filter((l) => !this.#stored.has(l.clientMessageId));
    this.#stored.clear();
    this.#asking = this.#gapAt = undefined;
    this.#gapPause = gapPauseMs;
    this.#needNewest = false;
    this.#ackBase = this.#ackDone = 0;
    this.#ackExtra = [];
    this.#unread = this.#countedTo = 0;
    this.#touch();
  }

  /** The seq after which everything up to have is here. */
  #from(): number {
    const newest = this.#stretches.at(-1);
    return newest ? newest.from - 1 : this.#have;
  }

  // --- Entries and items ---

  /** Takes the server's count, which includes entries up to seq, and adds what was shown above that. */
  #count(unread: number, seq: number): void {
    this.#countedTo = seq;
    const above = Math.max(seq, this.#readSeq);
    const newer = this.#entries.filter((e) => this.#countable(e, above)).length;
    this.#unread = Math.min(unread + newer, unreadLimit);
  }

  #countable(entry: Entry, above: number): boolean {
    return entry.countable && entry.sender !== this.self && entry.seq > above;
  }

  /** Holds an entry, or changes the one it is about. */
  #apply(entry: Entry, fx: Effects): void {
    switch (entry.kind) {
      case EntryKind.MESSAGE:
      case EntryKind.MEMBER_CHANGE:
      case EntryKind.CONVERSATION_CHANGE: {
        const at = lowerBound(this.#entries, entry.seq);
        if (this.#entries[at]?.seq === entry.seq) this.#replace(entry, fx);
        else this.#entries.splice(at, 0, entry);
        return;
      }
      case EntryKind.EDIT:
      case EntryKind.RECALL: {
        const target = this.#entries[lowerBound(this.#entries, entry.targetSeq)];
        if (target?.seq !== entry.targetSeq) return;
        const { content: _, ...rest } = target;
        const content = entry.kind === EntryKind.EDIT ? entry.content : undefined;
        this.#replace({ ...rest, changedSeq: entry.seq, ...(content && { content }) }, fx);
        return;
      }
      default:
    }
  }

  /** Replaces the copy of an entry by a newer one. */
  #replace(entry: Entry, fx: Effects): void {
    const at = lowerBound(this.#entries, entry.seq);
    const held = this.#entries[at];
    if (held?.seq !== entry.seq || entry.changedSeq <= held.changedSeq) return;
    this.#entries[at] = entry;
    fx.changed.push(entry.seq);
    this.#touch();
  }

  #trim(): void {
    const cut = this.#options.keep > 0 ? this.#entries.length - this.#options.keep : 0;
    if (cut > 0) this.#floor = this.#entries.splice(0, cut).at(-1)!.seq + 1;
  }

  #local(clientMessageId: string): number {
    return this.#locals.findIndex((l) => l.clientMessageId === clientMessageId);
  }

  /** Ends the wait of what turns out to be in the log. */
  #takeOwn(entry: Entry, fx: Effects): void {
    if (entry.clientMessageId !== "" && entry.sender === this.self) this.#take(entry.clientMessageId, fx);
  }

  /** Ends the wait of what was stored at or below have without being shown, because a newer page was taken. */
  #takeStored(fx: Effects): void {
    for (const [id, seq] of this.#stored) if (seq <= this.#have) this.#take(id, fx);
  }

  #take(clientMessageId: string, fx: Effects): void {
    this.#stored.delete(clientMessageId);
    const at = this.#local(clientMessageId);
    if (at < 0) return;
    this.#locals.splice(at, 1);
    fx.sent.push(clientMessageId);
    this.#touch();
  }

  #buildItems(): Item[] {
    const items: Item[] = [];
    const gaps = this.gaps;
    for (const entry of this.#entries) {
      while (gaps.length > 0 && gaps[0]!.to < entry.seq) items.push(gapItem(gaps.shift()!));
      const mine = entry.sender === this.self;
      const key = mine && entry.clientMessageId ? entry.clientMessageId : `s${entry.seq}`;
      items.push(entry.kind === EntryKind.MESSAGE ? { kind: "message", key, entry, mine } : { kind: "change", key: `s${entry.seq}`, entry });
    }
    for (const gap of gaps) items.push(gapItem(gap));
    for (const local of this.#locals) items.push({ kind: "local", key: local.clientMessageId, local });
    return items;
  }

  #touch(): void {
    this.#items = undefined;
  }
}

function noEffects(): Effects {
  return { show: [], changed: [], sent: [], sync: false, reset: false };
}

function sameRequest(a: HistoryRequest, b: HistoryRequest): boolean {
  return a.after === b.after && a.before === b.before && a.backward === b.backward && a.jump === b.jump;
}

function gapItem(gap: Stretch): Item {
  return { kind: "gap", key: `g${gap.to}`, gap };
}

/** The place of a seq in entries of rising seq. */
function lowerBound(entries: readonly Entry[], seq: number): number {
  let low = 0;
  let high = entries.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (entries[middle]!.seq < seq) low = middle + 1;
    else high = middle;
  }
  return low;
}
