// The client: connects, stays connected, keeps conversations in step with the
// server, and sends. It has no user interface and runs in browsers and in Node.

import { create } from "@bufbuild/protobuf";
import {
  Ack,
  type Announcement as AnnouncementFrame,
  CursorSchema,
  HistorySchema,
  type Receipt as ReceiptFrame,
  SendSchema,
  type SendAck,
  type ServerFrame,
  SyncSchema,
  type SyncResult,
  type Welcome,
} from "../gen/imd/client/v1/client_pb.js";
import type { Encoding } from "./codec.js";
import type { AnnouncementCursor, Connection, SocketFactory } from "./connection.js";
import { Conversation } from "./conversation.js";
import { ImdError } from "./errors.js";
import { Link, type LinkState, type TokenReason } from "./link.js";
import { Marks } from "./marks.js";
import {
  checkContent,
  type Content,
  contentFrame,
  ConversationKind,
  type Entry,
  entryOf,
  type Page,
  pageOf,
  type Receipt,
  receiptOf,
  Role,
  type State,
  stateOf,
} from "./model.js";
import { Outbox, type OutboxItem, type OutboxSend } from "./outbox.js";
import { type Presence, Presences, Typings, type Watch } from "./presence.js";
import { memoryStore, type OutboxStore } from "./store.js";
import type { Stretch } from "./stretches.js";
import type { Effects, HistoryRequest } from "./timeline.js";
import { Timers } from "./timers.js";

/** How to reach the server and as whom. */
export interface ClientOptions {
  /** The WebSocket endpoint, such as wss://chat.example/v1/ws. */
  url: string;
  /** The user the tokens are for. */
  userId: string;
  /**
   * Gives a token. It may give the same one as before while that is valid; it
   * throws SignInRequired to stop the client for good, anything else to be asked again.
   */
  token: (reason: TokenReason) => string | Promise<string>;
  /** Kept as long as the client is installed; two programs that run at once have two. */
  deviceId: string;
  /** phone, tablet, web (default), desktop or bot. */
  class?: string;
  /** Program and version, at most 64 bytes. */
  client?: string;
  /** json (default) or proto. */
  encoding?: Encoding;
  /** Opens sockets; default: the global WebSocket. */
  socket?: SocketFactory;
  /** Keeps unsent messages; default: in memory only. */
  store?: OutboxStore;
  /** Numbers in [0, 1); default: Math.random. */
  random?: () => number;
  /** Keeps which announcement or withdrawal was told last; default: in memory only. */
  announcements?: AnnouncementStore;
  /** Makes client message ids; default: uuid7. */
  newId?: () => string;
}

/** Keeps which announcement or withdrawal a user was told last on this device. */
export interface AnnouncementStore {
  load(userId: string): AnnouncementCursor;
  save(userId: string, cursor: AnnouncementCursor): void;
}

/** What the operator tells everybody. */
export interface Announcement {
  seq: number;
  text: string;
  createdMs: number;
  /** Not to be shown from then on. */
  expiresMs: number;
}

/** The state of the connection. */
export interface ClientState extends LinkState {
  /** Whether a list of all conversations has been read since the start. */
  synced: boolean;
}

/** What a client tells. Listeners are called in the middle of its work and must not block or throw. */
export interface ClientEvents {
  /** The connection's state or the number of waiting messages changed. */
  state(): void;
  /** Something about this conversation changed. */
  conversation(conversation: Conversation): void;
  /** A conversation came or went. */
  conversations(): void;
  /** A message came live from another user. */
  message(conversation: Conversation, entry: Entry): void;
  /** The operator tells everybody something; each comes once. */
  announcement(announcement: Announcement): void;
  /** An announcement was taken back: stop showing it. It may be one that was never shown. */
  announcementGone(seq: number): void;
  /** What is known of watched users changed. */
  presence(): void;
  /** A message of one's own was refused for good. */
  failed(conversation: Conversation, error: ImdError): void;
}

const pageLimit = 30;
const historyLimit = 50;
const cursorLimit = 256;
const orphanLimit = 256;
const syncRetryMs = 500;
const contentLimitBytes = 16_384;

/** A user's conversations over one device. Call start; everything else may be called at any time. */
export class Client {
  readonly userId: string;
  #options: Required<ClientOptions>;
  #listeners = new Set<Partial<ClientEvents>>();
  #state: ClientState;
  #link: Link;
  #marks: Marks;
  #presences: Presences;
  #typings: Typings;
  #timers = new Timers();
  #conversations = new Map<string, Conversation>();
  /** Entries of conversations that no sync has named yet. */
  #orphans = new Map<string, Entry[]>();
  #outbox = new Outbox();
  #limit = contentLimitBytes;
  #features: readonly string[] = [];
  #announced: AnnouncementCursor;

  #dataEpoch = "";
  #syncToken = "";
  /** The connection that a sync runs on. */
  #syncing: Connection | undefined;
  /** From the end of a connection to the end of the sync of the next one. */
  #paused = true;
  #syncAgain = false;
  #listing = false; // #syncToken is of a listing with more pages.
  #repair = false; // That listing is made because of a digest.
  #doubt = false; // No digest has agreed since the last repair.
  #repairs = 0;
  #fullIds: Set<string> | undefined;
  #cursors = new Map<string, number>();

  constructor(options: ClientOptions) {
    this.userId = options.userId;
    this.#options = {
      class: "web",
      client: "imd-ts/0.1.0",
      encoding: "json",
      socket: (url, protocol) => new WebSocket(url, protocol),
      store: memoryStore,
      random: Math.random,
      newId: uuid7,
      announcements: { load: () => ({ seq: 0, epoch: "" }), save: () => {} },
      ...options,
    };
    this.#announced = this.#options.announcements.load(this.userId);
    this.#link = new Link({ ...this.#options, announced: () => this.#announced }, {
      joining: (conn) => this.#beginSync(conn),
      online: (_, welcome) => this.#online(welcome),
      offline: () => this.#offline(),
      event: (frame) => this.#event(frame),
      state: () => this.#set({}),
    });
    this.#state = { ...this.#link.state, synced: false };
    this.#marks = new Marks(
      () => this.#link.conn,
      (receipt) => this.#receipt(receipt),
    );
    this.#presences = new Presences(
      () => this.#link.conn,
      () => this.#tell("presence"),
      this.#options.random,
    );
    this.#typings = new Typings(
      () => this.#link.conn,
      (conversation) => this.#changed(conversation),
    );
    for (const item of this.#options.store.load(this.userId).sort((a, b) => a.at - b.at)) this.#restore(item);
  }

  /** The state of the connection; a new object whenever it changes. */
  get state(): ClientState {
    return this.#state;
  }

  /** How many messages wait to be stored. */
  get waiting(): number {
    return this.#outbox.size;
  }

  /** The most bytes of a content, as the server said. */
  get contentLimit(): number {
    return this.#limit;
  }

  /** Later parts of the protocol that the server has. */
  get features(): readonly string[] {
    return this.#features;
  }

  /**
   * How often the full list of conversations was asked for because the server's
   * digest of their heads was another than the one here: something that a sync
   * should have told was lost. 0 as long as all is well.
   */
  get repairs(): number {
    return this.#repairs;
  }

  /** All conversations, the newest activity first. */
  get conversations(): Conversation[] {
    return [...this.#conversations.values()].sort((a, b) => b.activityAt - a.activityAt || a.key.localeCompare(b.key));
  }

  /** The conversation of this id or key; undefined if there is none. */
  conversation(key: string): Conversation | undefined {
    return this.#conversations.get(key);
  }

  /** The direct conversation with a user, which need not exist on the server yet. */
  direct(userId: string): Conversation {
    for (const c of this.#conversations.values()) {
      if (c.kind === ConversationKind.DIRECT && c.peerId === userId) return c;
    }
    const draft = new Conversation(this.userId, ConversationKind.DIRECT);
    draft.peerId = userId;
    draft.memberCount = 2;
    this.#conversations.set(draft.key, draft);
    this.#tell("conversations");
    return draft;
  }

  /** What is known of a user who is watched; undefined if that is nothing now. */
  presence(userId: string): Presence | undefined {
    return this.#presences.of(userId);
  }

  /** Watches users or the members of conversations until the returned function is called. */
  watchPresence(watch: Watch): () => void {
    return this.#presences.watch(watch);
  }

  /** The user types in a conversation: the others are told for some seconds. Call it with each key. */
  typing(conversation: Conversation): void {
    this.#typings.tell(conversation);
  }

  /** Listens until the returned function is called. */
  on(listener: Partial<ClientEvents>): () => void {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  /** Connects, and again whenever the connection ends, until stop or a reason that only a person can change. */
  start(): void {
    this.#link.start();
  }

  /** Disconnects. Unsent messages stay in the store. */
  stop(): void {
    this.#link.stop();
    this.#timers.clear();
  }

  /** Tries at once instead of at the end of a wait: the network is back, or the person looks at the page again. */
  wake(): void {
    this.#link.wake();
  }

  /** The network changed: the connection is taken for dead. */
  networkChanged(): void {
    this.#link.drop("the network changed");
  }

  // --- Writing ---

  /** Writes a message; it is shown as pending at once. Returns its client message id. Throws ImdError for content that no server takes. */
  send(conversation: Conversation, content: Content): string {
    const reason = checkContent(content, this.#limit);
    if (reason) throw new ImdError(reason, reason === "too_large" ? "the message is too long" : "the message cannot be sent");
    const item: OutboxItem = {
      clientMessageId: this.#options.newId(),
      conversation: conversation.key,
      toUser: conversation.id === "" ? conversation.peerId : "",
      content,
      at: Date.now(),
      resend: false,
      failed: "",
    };
    this.#options.store.put(this.userId, item);
    this.#outbox.add(item);
    conversation.timeline.send({ clientMessageId: item.clientMessageId, content, targetSeq: 0, at: item.at });
    this.#typings.sent(conversation);
    this.#changed(conversation);
    this.#sendOutbox();
    return item.clientMessageId;
  }

  /** Sends a failed message again, with the same id. */
  retry(conversation: Conversation, clientMessageId: string): void {
    const item = this.#outbox.retry(clientMessageId);
    if (!item) return;
    this.#options.store.put(this.userId, item);
    conversation.timeline.send({ ...item, targetSeq: 0 });
    this.#changed(conversation);
    this.#sendOutbox();
  }

  /** Gives a message up that is not known to be stored. It may appear nevertheless. */
  withdraw(conversation: Conversation, clientMessageId: string): void {
    if (!this.#withdrawn(clientMessageId)) return;
    conversation.timeline.withdraw(clientMessageId);
    this.#changed(conversation);
    this.#sendOutbox();
  }

  /** The user has read up to seq. Calls are gathered; the position never goes back. */
  read(conversation: Conversation, seq: number): void {
    if (conversation.id === "" || seq <= conversation.timeline.readSeq) return;
    conversation.timeline.read(seq);
    this.#changed(conversation);
    if (conversation.role !== Role.UNSPECIFIED) this.#marks.read(conversation, seq);
  }

  /** Takes over how far members have come, as a list of members says; later changes come by themselves. */
  applyReceipts(conversation: Conversation, receipts: readonly Receipt[]): void {
    for (const receipt of receipts) conversation.applyReceipt(receipt);
    this.#changed(conversation);
  }

  #withdrawn(clientMessageId: string): boolean {
    if (!this.#outbox.withdraw(clientMessageId)) return false;
    this.#options.store.delete(this.userId, clientMessageId);
    return true;
  }

  // --- Reading ---

  /** Reads a page of older entries. Resolves when it is merged or could not be read. */
  async loadOlder(conversation: Conversation): Promise<void> {
    if (conversation.loading || conversation.id === "" || !conversation.timeline.older) return;
    conversation.loading = true;
    this.#changed(conversation);
    await this.#load(conversation, conversation.timeline.olderRequest);
    conversation.loading = false;
    this.#changed(conversation);
  }

  /** Reads a page of what lies in a gap of the timeline, from its upper end. */
  async loadGap(conversation: Conversation, gap: Stretch): Promise<void> {
    if (conversation.loadingGaps.has(gap.from)) return;
    conversation.loadingGaps.add(gap.from);
    this.#changed(conversation);
    await this.#load(conversation, { after: gap.from - 1, before: gap.to + 1, backward: true, jump: false });
    conversation.loadingGaps.delete(gap.from);
    this.#changed(conversation);
  }

  async #load(conversation: Conversation, request: HistoryRequest): Promise<void> {
    const page = await this.#history(conversation, request);
    if (page && !(page instanceof ImdError)) this.#do(conversation, conversation.timeline.page(Date.now(), request, page));
  }

  // --- Connection ---

  #online(welcome: Welcome): void {
    this.#pause(); // What the connection before did not answer is not answered any more.
    if (this.#dataEpoch !== "" && welcome.dataEpoch !== this.#dataEpoch) this.#resync();
    this.#dataEpoch = welcome.dataEpoch;
    this.#features = welcome.features;
    this.#limit = welcome.limits?.contentBytes || contentLimitBytes;
    for (const c of this.#conversations.values()) c.timeline.connected();
    this.#marks.online();
    this.#presences.online(welcome.features);
    this.#typings.online(welcome.features);
    this.#sendOutbox();
  }

  #offline(): void {
    this.#pause();
    this.#presences.offline();
    this.#typings.offline(this.#conversations.values());
  }

  /** Until the sync of the next connection has ended. Who is online and who types stays known if that one took over from another. */
  #pause(): void {
    this.#outbox.disconnected();
    this.#marks.offline();
    this.#timers.clear();
    this.#paused = true;
    for (const c of this.#conversations.values()) c.timeline.disconnected();
  }

  #event(frame: ServerFrame): void {
    const kind = frame.kind;
    switch (kind.case) {
      case "deliver":
        return this.#deliver(kind.value.conversationId, kind.value.entries.map(entryOf));
      case "head":
        return this.#head(kind.value.conversationId, Number(kind.value.seq));
      case "receipt":
        return this.#receipt(kind.value);
      case "sendAck":
        return this.#sendAck(frame.id, kind.value);
      case "presence":
        return this.#presences.told(kind.value);
      case "announcement":
        return this.#announcement(kind.value);
      case "typing":
        return this.#typing(kind.value.conversationId, kind.value.userId);
      default:
    }
  }

  #announcement(a: AnnouncementFrame): void {
    const seq = Number(a.seq);
    const number = a.withdrawn ? Number(a.withdrawalSeq) : seq; // 0 from a server that gives withdrawals none
    if (this.#announced.epoch !== this.#dataEpoch) this.#announced = { seq: 0, epoch: this.#dataEpoch };
    if (number > 0 && number <= this.#announced.seq) return;
    this.#announced = { seq: Math.max(number, this.#announced.seq), epoch: this.#dataEpoch };
    this.#options.announcements.save(this.userId, this.#announced);
    if (a.withdrawn) return this.#tell("announcementGone", seq);
    this.#tell("announcement", { seq, text: a.text, createdMs: Number(a.createdMs), expiresMs: Number(a.expiresMs) });
  }

  #deliver(id: string, entries: Entry[]): void {
    const conversation = this.#conversations.get(id);
    if (!conversation) {
      const orphans = this.#orphans.get(id) ?? [];
      if (orphans.length + entries.length <= orphanLimit) this.#orphans.set(id, orphans.concat(entries));
      this.#syncSoon();
      return;
    }
    const fx = conversation.timeline.deliver(Date.now(), entries);
    this.#do(conversation, fx);
    for (const entry of fx.show) {
      if (entry.countable && entry.sender !== this.userId) this.#tell("message", conversation, entry);
    }
  }

  #typing(id: string, userId: string): void {
    const conversation = this.#conversations.get(id);
    if (conversation && userId !== this.userId) this.#typings.began(conversation, userId);
  }

  #head(id: string, seq: number): void {
    const conversation = this.#conversations.get(id);
    if (!conversation) return this.#syncSoon();
    this.#do(conversation, conversation.timeline.head(Date.now(), seq));
  }

  #receipt(frame: ReceiptFrame): void {
    const conversation = this.#conversations.get(frame.conversationId);
    if (!conversation) return;
    const receipt = receiptOf(frame);
    if (receipt.userId === this.userId) conversation.timeline.receipt(receipt.readSeq, receipt.unreadCount);
    else conversation.applyReceipt(receipt);
    this.#changed(conversation);
  }

  /** Does what a timeline asks for. */
  #do(conversation: Conversation, fx: Effects): void {
    for (const entry of fx.show) {
      conversation.observe(entry);
      this.#typings.ended(conversation, entry.sender);
    }
    for (const id of fx.sent) this.#settled(id);
    if (fx.sync) this.#syncSoon();
    if (fx.history) this.#request(conversation, fx.history);
    this.#tickLater(conversation);
    this.#marks.shown(conversation, fx.show.length);
    this.#changed(conversation);
  }

  /** An own message turned out to be stored. */
  #settled(clientMessageId: string): void {
    this.#options.store.delete(this.userId, clientMessageId);
    if (this.#outbox.settle(clientMessageId)) this.#sendOutbox();
  }

  #tickLater(conversation: Conversation): void {
    const { timeline } = conversation;
    const name = `tick ${conversation.id}`;
    if (timeline.wakeAt === undefined) return this.#timers.cancel(name);
    this.#timers.set(name, timeline.wakeAt - Date.now(), () => this.#do(conversation, timeline.tick(Date.now())));
  }

  /** Reads what a timeline lacks. */
  #request(conversation: Conversation, request: HistoryRequest): void {
    const { timeline } = conversation;
    void this.#history(conversation, request).then((page) => {
      if (!page) return; // The connection ended; the next one begins with a sync.
      if (!(page instanceof ImdError)) return this.#do(conversation, timeline.page(Date.now(), request, page));
      timeline.historyFailed(Date.now(), page.retryAfterMs);
      if (page.reason === "not_member") this.#syncSoon();
      this.#tickLater(conversation);
    });
  }

  // --- Outbox ---

  #restore(item: OutboxItem): void {
    const direct = item.conversation.startsWith("@");
    let conversation = this.#conversations.get(item.conversation);
    if (!conversation) {
      conversation = new Conversation(this.userId, direct ? ConversationKind.DIRECT : ConversationKind.GROUP);
      if (direct) conversation.peerId = item.conversation.slice(1);
      else conversation.id = item.conversation;
      this.#conversations.set(conversation.key, conversation);
    }
    this.#outbox.add({ ...item, resend: true });
    conversation.timeline.send({ clientMessageId: item.clientMessageId, content: item.content, targetSeq: 0, at: item.at });
    if (item.failed) conversation.timeline.fail(item.clientMessageId, item.failed);
  }

  #sendOutbox(): void {
    const { conn } = this.#link;
    if (conn) {
      for (const send of this.#outbox.take(Date.now(), () => conn.nextId())) this.#write(conn, send);
      const at = this.#outbox.wakeAt(Date.now());
      if (at !== undefined) this.#timers.set("outbox", at - Date.now(), () => this.#sendOutbox());
    }
    this.#tell("state");
  }

  #write(conn: Connection, { item, frameId, runStart }: OutboxSend): void {
    const send = create(SendSchema, {
      to: item.toUser ? { case: "toUser", value: item.toUser } : { case: "conversationId", value: item.conversation },
      clientMessageId: item.clientMessageId,
      resend: item.resend,
      content: contentFrame(item.content),
      runStart,
    });
    conn.request(
      { case: "send", value: send },
      (answer) => {
        if (answer?.kind.case === "sendAck") this.#sendAck(frameId, answer.kind.value);
        else if (answer?.kind.case === "error") {
          const { reason, retryable, retryAfterMs } = answer.kind.value;
          const status = retryable ? "retry" : "fail";
          this.#answered({ frameId, clientMessageId: item.clientMessageId, status, reason, retryAfterMs });
        }
      },
      frameId,
    );
  }

  #sendAck(frameId: number, ack: SendAck): void {
    const { clientMessageId, error } = ack;
    const status = ack.status === Ack.OK ? "ok" : ack.status === Ack.FAIL ? "fail" : "retry";
    const ended = this.#answered({
      frameId,
      clientMessageId,
      status,
      reason: error?.reason ?? "",
      retryAfterMs: error?.retryAfterMs ?? 0,
    });
    if (ended && status === "ok") this.#stored(ended, ack);
    this.#sendOutbox();
  }

  #answered(answer: Parameters<Outbox["answer"]>[0]): OutboxItem | undefined {
    const item = this.#outbox.answer(answer, Date.now());
    if (!item) return undefined;
    if (!item.failed) {
      this.#options.store.delete(this.userId, item.clientMessageId);
      return item;
    }
    this.#options.store.put(this.userId, item);
    const conversation = this.#conversations.get(item.conversation);
    if (!conversation) return item;
    conversation.timeline.fail(item.clientMessageId, item.failed);
    if (item.failed === "not_member" && conversation.id !== "") this.#syncSoon();
    this.#tell("failed", conversation, new ImdError(item.failed, item.failed));
    this.#changed(conversation);
    return item;
  }

  /** The ack stands for what was sent. */
  #stored(item: OutboxItem, ack: SendAck): void {
    const conversation = this.#conversations.get(item.conversation);
    if (!conversation) return;
    const { timeline } = conversation;
    const prevSeq = Number(ack.prevSeq);
    if (conversation.id === "") {
      this.#identify(conversation, ack.conversationId);
      // Before the first entry there is nothing to miss.
      if (prevSeq === 0 && !timeline.known) timeline.restore(0, 0, 0);
      this.#syncSoon();
    }
    const { clientMessageId, messageId } = ack;
    const stored = { clientMessageId, messageId, seq: Number(ack.seq), prevSeq, at: Number(ack.serverTimeMs) };
    this.#do(conversation, timeline.sendAck(Date.now(), stored));
  }

  /** A direct conversation got its id. */
  #identify(conversation: Conversation, id: string): void {
    const key = conversation.key;
    conversation.id = id;
    this.#conversations.delete(key);
    this.#conversations.set(id, conversation);
    for (const item of this.#outbox.rename(key, id)) this.#options.store.put(this.userId, item);
    this.#tell("conversations");
  }

  // --- Sync ---

  #syncSoon(): void {
    if (this.#syncing) this.#syncAgain = true;
    else if (this.#link.conn) this.#beginSync(this.#link.conn);
  }

  #beginSync(conn: Connection): void {
    this.#syncing = conn;
    // What the first pages of a listing named may have changed since.
    this.#syncAgain = this.#listing;
    if (!this.#listing) this.#fullIds = undefined;
    this.#requestSync(conn);
  }

  #requestSync(conn: Connection): void {
    // Only the token tells the server which history the cursors are of.
    const known = this.#syncToken === "" ? [] : this.conversations.filter((c) => c.id !== "" && c.timeline.known).slice(0, cursorLimit);
    this.#cursors = new Map(known.map((c) => [c.id, c.timeline.have]));
    const sync = create(SyncSchema, {
      syncToken: this.#syncToken,
      cursors: known.map((c) => create(CursorSchema, { conversationId: c.id, have: BigInt(c.timeline.have) })),
      pageLimit: this.#repair ? 0 : pageLimit, // What is here is not read again; what is missing is read after the end.
    });
    conn.request({ case: "sync", value: sync }, (answer) => {
      if (conn !== this.#syncing) return; // Another connection has begun its own.
      if (answer?.kind.case === "syncResult") return this.#synced(conn, answer.kind.value);
      this.#syncing = undefined;
      if (!answer) return this.#syncSoon(); // Moving failed, and the old connection goes on; if there is none, this does nothing.
      this.#timers.set("sync", syncRetryMs * (1 + this.#options.random()), () => this.#syncSoon());
    });
  }

  #synced(conn: Connection, result: SyncResult): void {
    if (result.dataEpoch !== this.#dataEpoch) return conn.drop("the store has another history now");
    if (result.full) this.#fullIds ??= new Set();
    for (const frame of result.conversations) this.#applyState(stateOf(frame));
    this.#syncToken = result.syncToken;
    this.#listing = result.more;
    if (result.more) return this.#requestSync(conn);
    if (this.#fullIds) this.#forgetOthers(this.#fullIds);
    this.#repair = this.#toRepair(result);
    if (this.#repair) {
      this.#repairs++;
      this.#syncToken = "";
      this.#fullIds = undefined;
      return this.#requestSync(conn);
    }
    this.#syncing = undefined;
    this.#paused = false;
    this.#orphans.clear();
    this.#set({ synced: true });
    this.#tell("conversations");
    for (const c of this.#conversations.values()) this.#do(c, c.timeline.synced(Date.now()));
    if (this.#syncAgain) this.#syncSoon();
  }

  /**
   * Whether the full list is to be asked for: the digest is not that of what syncs
   * have told. Once: if the sums differ after that too, another list brings nothing new.
   */
  #toRepair(result: SyncResult): boolean {
    if (result.digest === 0n) return false;
    let sum = 0n;
    for (const c of this.#conversations.values()) sum += c.digestTerm;
    const differs = BigInt.asUintN(64, sum) !== result.digest;
    const again = differs && !this.#doubt && !result.full;
    this.#doubt = differs;
    return again;
  }

  #applyState(state: State): void {
    const id = state.conversationId;
    this.#fullIds?.add(id);
    const conversation = this.#find(state);
    const { timeline } = conversation;
    conversation.describe(state);
    this.#do(conversation, timeline.state(Date.now(), this.#cursors.get(id), state));
    const orphans = this.#orphans.get(id);
    if (orphans) this.#do(conversation, timeline.deliver(Date.now(), orphans));
    this.#orphans.delete(id);
  }

  #find(state: State): Conversation {
    const known = this.#conversations.get(state.conversationId);
    if (known) return known;
    const draft = state.peerId ? this.#conversations.get(`@${state.peerId}`) : undefined;
    if (draft) {
      this.#identify(draft, state.conversationId);
      return draft;
    }
    const conversation = new Conversation(this.userId, state.kind);
    if (this.#paused) conversation.timeline.disconnected();
    this.#conversations.set(state.conversationId, conversation);
    return conversation;
  }

  #forgetOthers(ids: Set<string>): void {
    for (const [key, conversation] of this.#conversations) {
      if (conversation.id === "" || ids.has(conversation.id)) continue;
      conversation.digestTerm = 0n;
      if (conversation.items.some((item) => item.kind === "local")) {
        conversation.role = Role.UNSPECIFIED;
        continue;
      }
      this.#conversations.delete(key);
      this.#marks.forget(conversation);
    }
  }

  /** Another history of the store: everything read before is void, what was not sent stays. */
  #resync(): void {
    this.#syncToken = "";
    this.#listing = this.#syncAgain = this.#repair = this.#doubt = false;
    this.#fullIds = undefined;
    this.#cursors.clear();
    this.#orphans.clear();
    for (const conversation of this.#conversations.values()) {
      this.#marks.forget(conversation);
      for (const id of conversation.timeline.resync()) this.#withdrawn(id);
      conversation.receipts.clear();
      conversation.lastMessage = undefined;
      conversation.digestTerm = 0n;
      this.#changed(conversation);
    }
  }

  // --- History ---

  /** The page asked for; an error if the server refused; undefined if the connection ended before. */
  #history(conversation: Conversation, request: HistoryRequest): Promise<Page | ImdError | undefined> {
    const value = create(HistorySchema, {
      conversationId: conversation.id,
      afterSeq: BigInt(request.after),
      beforeSeq: BigInt(request.before),
      limit: historyLimit,
      backward: request.backward,
    });
    return new Promise((resolve) => {
      const { conn } = this.#link;
      if (!conn) return resolve(undefined);
      conn.request({ case: "history", value }, (answer) => {
        if (answer?.kind.case === "historyResult" && answer.kind.value.page) resolve(pageOf(answer.kind.value.page));
        else resolve(answer && ImdError.of(answer.kind.case === "error" ? answer.kind.value : undefined));
      });
    });
  }

  // --- Helpers ---

  #changed(conversation: Conversation): void {
    this.#tell("conversation", conversation);
  }

  #set(state: Partial<ClientState>): void {
    this.#state = { ...this.#state, ...this.#link.state, ...state };
    this.#tell("state");
  }

  #tell<K extends keyof ClientEvents>(event: K, ...args: Parameters<ClientEvents[K]>): void {
    for (const listener of this.#listeners) (listener[event] as ((...a: unknown[]) => void) | undefined)?.(...args);
  }
}

/**
 * A UUID version 7: 48 bits of the time in milliseconds, then 74 random ones. Ids
 * of one millisecond have no order.
 */
export function uuid7(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(10));
  bytes[0] = (bytes[0]! & 0x0f) | 0x70;
  bytes[2] = (bytes[2]! & 0x3f) | 0x80;
  const time = Math.max(0, Date.now()).toString(16).padStart(12, "0");
  const hex = time + [...bytes].map((b) => b.toString(16).padStart(2, "0")).join("");
  return `${hex.slice(0, 8)}-${hex.slice(8, 12)}-${hex.slice(12, 16)}-${hex.slice(16, 20)}-${hex.slice(20)}`;
}
