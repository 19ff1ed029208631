import type { AnnouncementCursor } from "./connection.js";
import { create } from "@bufbuild/protobuf";
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import {
  AnnouncementSchema,
  Ack,
  ByeSchema,
  type ClientFrame,
  ContentSchema,
  ConversationKind,
  ConversationStateSchema,
  DeliverSchema,
  DrainSchema,
  EntryKind,
  EntrySchema,
  ErrorSchema,
  HeadSchema,
  HistoryResultSchema,
  PageSchema,
  PingSchema,
  PresenceSchema,
  ReceiptSchema,
  RefreshResultSchema,
  Role,
  SendAckSchema,
  type ServerFrame,
  ServerFrameSchema,
  SyncResultSchema,
  TypingSchema,
  UserPresenceSchema,
  WelcomeSchema,
} from "../gen/imd/client/v1/client_pb.js";
import { Client, type ClientOptions } from "./client.js";
import { digestTerm } from "./digest.js";
import { decodeClient, encodeServer } from "./codec.js";
import type { Socket } from "./connection.js";
import { SignInRequired } from "./errors.js";
import { memoryStore, webStore } from "./store.js";

type Kind = ServerFrame["kind"];

/** The server's end of one socket, played by the test. */
class FakeSocket implements Socket {
  static all: FakeSocket[] = [];
  static get last(): FakeSocket {
    return FakeSocket.all.at(-1)!;
  }
  binaryType = "";
  onopen: (() => void) | null = null;
  onmessage: ((event: { data: unknown }) => void) | null = null;
  onclose: ((event: { code: number; reason: string }) => void) | null = null;
  onerror: (() => void) | null = null;
  closed = false;
  envelopes: ClientFrame[][] = [];
  #read = 0;

  constructor(
    readonly url: string,
    readonly subprotocol: string,
  ) {
    FakeSocket.all.push(this);
  }

  send(data: string | Uint8Array): void {
    this.envelopes.push(decodeClient(this.subprotocol === "imd.v1.json" ? "json" : "proto", data));
  }

  close(): void {
    this.closed = true;
  }

  /** The frames that came since the last look. */
  async frames(): Promise<ClientFrame[]> {
    await vi.advanceTimersByTimeAsync(0);
    const all = this.envelopes.flat();
    const fresh = all.slice(this.#read);
    this.#read = all.length;
    return fresh;
  }

  /** Of those frames, the ones of a kind. */
  async of<C extends NonNullable<ClientFrame["kind"]["case"]>>(kind: C) {
    const frames = (await this.frames()).filter((f) => f.kind.case === kind);
    return frames.map((f) => ({ id: f.id, value: f.kind.value as Extract<ClientFrame["kind"], { case: C }>["value"] }));
  }

  async say(kind: Kind, id = 0): Promise<void> {
    for (const data of encodeServer(this.subprotocol === "imd.v1.json" ? "json" : "proto", [create(ServerFrameSchema, { id, kind })])) {
      this.onmessage?.({ data });
    }
    await vi.advanceTimersByTimeAsync(0);
  }

  async drop(code = 1006): Promise<void> {
    this.onclose?.({ code, reason: "" });
    await vi.advanceTimersByTimeAsync(0);
  }

  async open(): Promise<void> {
    this.onopen?.();
    await vi.advanceTimersByTimeAsync(0);
  }

  async welcome(more: { dataEpoch?: string; tokenLifeMs?: number } = {}): Promise<void> {
    await this.open();
    const now = BigInt(Date.now());
    const value = create(WelcomeSchema, {
      version: 1,
      sessionId: "s",
      userId: "me",
      dataEpoch: more.dataEpoch ?? "e1",
      serverTimeMs: now,
      tokenExpireMs: now + BigInt(more.tokenLifeMs ?? 86_400_000),
      pingIntervalMs: 25_000,
      pongTimeoutMs: 10_000,
      features: ["presence", "typing"],
    });
    await this.say({ case: "welcome", value }, 1);
  }

  async synced(states: ReturnType<typeof state>[] = [], more: { full?: boolean; syncToken?: string; more?: boolean; dataEpoch?: string; digest?: bigint } = {}): Promise<void> {
    const id = this.envelopes.flat().findLast((f) => f.kind.case === "sync")!.id;
    const value = create(SyncResultSchema, { conversations: states, syncToken: "t1", dataEpoch: "e1", ...more });
    await this.say({ case: "syncResult", value }, id);
  }
}

function entry(seq: number, more: { sender?: string; clientMessageId?: string; text?: string; prevSeq?: number } = {}) {
  return create(EntrySchema, {
    seq: BigInt(seq),
    prevSeq: BigInt(more.prevSeq ?? seq - 1),
    kind: EntryKind.MESSAGE,
    sender: more.sender ?? "bob",
    clientMessageId: more.clientMessageId ?? "",
    content: create(ContentSchema, { value: { case: "text", value: more.text ?? `m${seq}` } }),
    countable: true,
  });
}

function state(head: number, more: { id?: string; entries?: ReturnType<typeof entry>[]; from?: number; members?: number; kind?: ConversationKind; peer?: string; unread?: number } = {}) {
  const from = more.from ?? 1;
  return create(ConversationStateSchema, {
    conversationId: more.id ?? "g_1",
    kind: more.kind ?? ConversationKind.GROUP,
    peerId: more.peer ?? "",
    name: "team",
    role: Role.MEMBER,
    headSeq: BigInt(head),
    memberCount: more.members ?? 3,
    unreadCount: more.unread ?? 0,
    page: create(PageSchema, { entries: more.entries ?? [], completeFrom: BigInt(from), completeTo: BigInt(head), end: true }),
  });
}

let client: Client;
let asked: string[];
let heldToken: Promise<string> | undefined;

function start(options: Partial<ClientOptions> = {}): Client {
  let id = 0;
  client = new Client({
    url: "ws://test/v1/ws",
    userId: "me",
    deviceId: "d1",
    token: (reason) => {
      asked.push(reason);
      return heldToken ?? `T${asked.length}`;
    },
    socket: (url, protocol) => new FakeSocket(url, protocol),
    random: () => 0.999,
    newId: () => `00000000-0000-4000-8000-${String(++id).padStart(12, "0")}`,
    ...options,
  });
  client.start();
  return client;
}

/** A client that is online with one group, everything read so far. */
async function online(head = 0, options: Partial<ClientOptions> = {}) {
  start(options);
  await vi.advanceTimersByTimeAsync(0);
  await FakeSocket.last.welcome();
  const entries = Array.from({ length: head }, (_, i) => entry(i + 1));
  await FakeSocket.last.synced([state(head, { entries })], { full: true });
  await vi.advanceTimersByTimeAsync(300);
  await FakeSocket.last.frames();
  return client.conversation("g_1")!;
}

const deliver = (...entries: ReturnType<typeof entry>[]): Kind => ({ case: "deliver", value: create(DeliverSchema, { conversationId: "g_1", entries }) });
const bye = (closeCode: number, reason: string, retryAfterMs = 0): Kind => ({ case: "bye", value: create(ByeSchema, { closeCode, reason, retryAfterMs }) });
const textsOf = (c = client.conversation("g_1")!) => c.timeline.entries.map((e) => e.content?.text);

beforeEach(() => {
  vi.useFakeTimers({ now: 1_000_000 });
  FakeSocket.all = [];
  asked = [];
  heldToken = undefined;
});

afterEach(() => {
  client.stop();
  expect(vi.getTimerCount()).toBe(0);
  vi.useRealTimers();
});

describe("connecting", () => {
  it("writes hello and sync in one envelope", async () => {
    start();
    await vi.advanceTimersByTimeAsync(0);
    expect(client.state.phase).toBe("joining");
    await FakeSocket.last.open();
    const [envelope] = FakeSocket.last.envelopes;
    expect(envelope!.map((f) => [f.id, f.kind.case])).toEqual([[1, "hello"], [2, "sync"]]);
    expect(envelope![0]!.kind.value).toMatchObject({ version: 1, token: "T1", deviceId: "d1", class: "web" });
    expect(FakeSocket.last.subprotocol).toBe("imd.v1.json");
    await FakeSocket.last.welcome();
    expect(client.state.phase).toBe("online");
  });

  it("speaks the binary form too", async () => {
    start({ encoding: "proto" });
    await vi.advanceTimersByTimeAsync(0);
    expect(FakeSocket.last.subprotocol).toBe("imd.v1.proto");
    await FakeSocket.last.welcome();
    expect(client.state.phase).toBe("online");
  });

  it("backs off with full jitter up to 30 s, and begins anew after 10 s online", async () => {
    start();
    const waits: number[] = [];
    for (let i = 0; i < 9; i++) {
      await vi.advanceTimersByTimeAsync(0);
      await FakeSocket.last.drop();
      expect(client.state.phase).toBe("waiting");
      waits.push(client.state.retryAt - Date.now());
      await vi.advanceTimersByTimeAsync(waits.at(-1)!);
    }
    expect(waits).toEqual([499, 999, 1998, 3996, 7992, 15984, 29970, 29970, 29970]);
    await FakeSocket.last.welcome();
    await vi.advanceTimersByTimeAsync(9_000);
    await FakeSocket.last.drop();
    expect(client.state.retryAt - Date.now()).toBe(29_970);
    await vi.advanceTimersByTimeAsync(29_970);
    await FakeSocket.last.welcome();
    await FakeSocket.last.synced();
    await vi.advanceTimersByTimeAsync(10_000);
    await FakeSocket.last.drop();
    expect(client.state.retryAt - Date.now()).toBe(499);
  });

  it("waits as long as the server says", async () => {
    await online();
    await FakeSocket.last.say(bye(4003, "busy", 7_000));
    expect(client.state).toMatchObject({ phase: "waiting", reason: "busy", retryAt: Date.now() + 7_000 });
  });

  it.each([
    [4501, "bad_token", "stopped"],
    [4503, "replaced", "stopped"],
    [4999, "from_the_future", "stopped"],
    [4499, "from_the_future", "waiting"],
    [4000, "drain", "waiting"],
  ])("judges a bye with %i by its range", async (code, reason, phase) => {
    await online();
    await FakeSocket.last.say(bye(code, reason));
    expect(client.state).toMatchObject({ phase, reason });
    expect(FakeSocket.last.closed).toBe(true);
  });

  it.each([[1000, "waiting"], [1001, "waiting"], [1006, "waiting"], [1002, "stopped"], [1008, "stopped"], [1009, "stopped"], [4507, "stopped"]])(
    "judges a close with %i",
    async (code, phase) => {
      await online();
      await FakeSocket.last.drop(code);
      expect(client.state.phase).toBe(phase);
    },
  );

  it("gets a new token after token_expired", async () => {
    await online();
    await FakeSocket.last.say(bye(4005, "token_expired"));
    await vi.advanceTimersByTimeAsync(500);
    expect(asked).toEqual(["start", "token_expired"]);
  });

  it("stops when the token source gives up, and goes on when it merely fails", async () => {
    let fail: Error = new Error("no network");
    start({ token: () => Promise.reject(fail) });
    await vi.advanceTimersByTimeAsync(0);
    expect(client.state.phase).toBe("waiting");
    fail = new SignInRequired("gone");
    await vi.advanceTimersByTimeAsync(500);
    expect(client.state).toMatchObject({ phase: "stopped", reason: "bad_token" });
    expect(FakeSocket.all).toHaveLength(0);
  });

  it("gives up a connection without welcome after 10 s", async () => {
    start();
    await vi.advanceTimersByTimeAsync(0);
    await FakeSocket.last.open();
    await vi.advanceTimersByTimeAsync(9_999);
    expect(client.state.phase).toBe("joining");
    await vi.advanceTimersByTimeAsync(1);
    expect(client.state.phase).toBe("waiting");
    expect(FakeSocket.last.closed).toBe(true);
  });

  it("answers a ping at once, and gives up after silence for interval and timeout", async () => {
    await online();
    await FakeSocket.last.say({ case: "ping", value: create(PingSchema, { intervalMs: 5_000 }) });
    expect((await FakeSocket.last.frames()).map((f) => f.kind.case)).toEqual(["pong"]);
    await vi.advanceTimersByTimeAsync(14_999);
    expect(client.state.phase).toBe("online");
    await vi.advanceTimersByTimeAsync(1);
    expect(client.state.phase).toBe("waiting");
  });

  it("gives up a connection that does not answer for 10 s", async () => {
    const c = await online();
    client.send(c, { text: "hi" });
    for (let i = 0; i < 9; i++) {
      await vi.advanceTimersByTimeAsync(1_000);
      await FakeSocket.last.say({ case: "ping", value: create(PingSchema, { intervalMs: 5_000 }) });
    }
    expect(client.state.phase).toBe("online");
    await vi.advanceTimersByTimeAsync(1_000);
    expect(client.state.phase).toBe("waiting");
  });

  it("gives up a connection with garbage", async () => {
    await online();
    FakeSocket.last.onmessage?.({ data: "{" });
    expect(client.state.phase).toBe("waiting");
  });

  it("tries at once when woken", async () => {
    await online();
    client.networkChanged();
    expect(client.state.phase).toBe("waiting");
    client.wake();
    await vi.advanceTimersByTimeAsync(0);
    expect(client.state.phase).toBe("joining");
  });

  it("refreshes the token at 80 % of its life", async () => {
    start();
    await vi.advanceTimersByTimeAsync(0);
    await FakeSocket.last.welcome({ tokenLifeMs: 20_000 });
    await FakeSocket.last.synced();
    await vi.advanceTimersByTimeAsync(15_999);
    expect(await FakeSocket.last.of("refreshToken")).toEqual([]);
    await vi.advanceTimersByTimeAsync(1);
    const [asking] = await FakeSocket.last.of("refreshToken");
    expect(asking!.value.token).toBe("T2");
    const value = create(RefreshResultSchema, { tokenExpireMs: BigInt(Date.now() + 10_000) });
    await FakeSocket.last.say({ case: "refreshResult", value }, asking!.id);
    await vi.advanceTimersByTimeAsync(8_000);
    expect((await FakeSocket.last.of("refreshToken"))[0]!.value.token).toBe("T3");
  });
});

describe("moving", () => {
  const drain: Kind = { case: "drain", value: create(DrainSchema, { reconnectAfterMs: 1_840, closeAfterMs: 9_000 }) };

  it("makes the new connection before it breaks the old one", async () => {
    const c = await online();
    const old = FakeSocket.last;
    await old.say(drain);
    expect(client.state).toMatchObject({ phase: "online", draining: true });
    client.send(c, { text: "two minutes" });
    const [first] = await old.of("send");
    expect(first!.value.resend).toBe(false);
    await vi.advanceTimersByTimeAsync(1_840);
    expect(FakeSocket.all).toHaveLength(2);
    const next = FakeSocket.last;
    await old.say(deliver(entry(1)));
    expect(textsOf()).toEqual(["m1"]);
    expect(old.closed).toBe(false);
    await next.open();
    await old.say(bye(4507, "superseded"));
    await next.welcome();
    expect(client.state).toMatchObject({ phase: "online", draining: false });
    expect(old.closed).toBe(true);
    const [again] = await next.of("send");
    expect(again!.value).toMatchObject({ clientMessageId: first!.value.clientMessageId, resend: true });
    await old.say(bye(4503, "replaced"));
    expect(client.state.phase).toBe("online");
  });

  it("shows what comes on both connections once and in order, and acknowledges it on the new one", async () => {
    await online(2);
    const old = FakeSocket.last;
    await old.say(drain);
    await old.say(deliver(entry(3)));
    await vi.advanceTimersByTimeAsync(1_840);
    const next = FakeSocket.last;
    await next.open();
    expect((await next.of("sync"))[0]!.value.cursors.map((c) => c.have)).toEqual([3n]);
    await old.say(deliver(entry(4)));
    await next.welcome();
    await next.say(deliver(entry(6)));
    await old.say(deliver(entry(5)));
    await next.say(deliver(entry(4)));
    expect(textsOf()).toEqual(["m1", "m2", "m3", "m4"]);
    await next.synced([state(5, { entries: [entry(4), entry(5)], from: 4 })]);
    expect(textsOf()).toEqual(["m1", "m2", "m3", "m4", "m5", "m6"]);
    await vi.advanceTimersByTimeAsync(300);
    const ranges = (await next.of("ack")).flatMap((a) => a.value.ranges.map((r) => [r.afterSeq, r.seq]));
    expect(ranges.at(-1)![1]).toBe(6n);
    expect(ranges[0]![0]).toBeLessThanOrEqual(3n);
    expect(await next.of("history")).toEqual([]);
  });

  it("keeps who is online and who types, and asks on the new connection", async () => {
    const c = await online(1);
    const old = FakeSocket.last;
    const stop = client.watchPresence({ users: ["bob"] });
    await vi.advanceTimersByTimeAsync(50);
    const presence = (isOnline: boolean): Kind => ({
      case: "presence",
      value: create(PresenceSchema, { users: [create(UserPresenceSchema, { userId: "bob", online: isOnline })] }),
    });
    await old.say(presence(true), (await old.of("watchPresence"))[0]!.id);
    await old.say({ case: "typing", value: create(TypingSchema, { conversationId: "g_1", userId: "anna" }) });
    const seen = new Set<unknown>();
    client.on({ presence: () => seen.add(client.presence("bob")?.online), state: () => seen.add(client.state.phase) });
    client.typing(c);
    await old.say(drain);
    await vi.advanceTimersByTimeAsync(1_840);
    const next = FakeSocket.last;
    await next.open();
    await old.say(bye(4507, "superseded"));
    expect(client.state).toMatchObject({ phase: "online", draining: true });
    client.send(c, { text: "between" });
    await next.welcome();
    expect([...c.typing]).toEqual(["anna"]);
    expect(client.presence("bob")?.online).toBe(true);
    client.typing(c);
    await vi.advanceTimersByTimeAsync(50);
    expect((await next.frames()).map((f) => f.kind.case)).toEqual(["hello", "sync", "send", "typing", "watchPresence"]);
    await old.say(presence(false));
    expect(client.presence("bob")?.online).toBe(true);
    seen.delete(true);
    expect([...seen]).toEqual(["online"]);
    stop();
  });

  it("asks on the new connection at once what the old one put off", async () => {
    await online();
    const old = FakeSocket.last;
    const stop = client.watchPresence({ users: ["bob"] });
    await vi.advanceTimersByTimeAsync(50);
    await old.say(drain);
    const later = create(ErrorSchema, { reason: "unavailable", retryable: true, retryAfterMs: 60_000 });
    await old.say({ case: "error", value: later }, (await old.of("watchPresence"))[0]!.id);
    await vi.advanceTimersByTimeAsync(1_840);
    const next = FakeSocket.last;
    await next.open();
    await next.welcome();
    await vi.advanceTimersByTimeAsync(50);
    expect(await next.of("watchPresence")).toHaveLength(1);
    stop();
  });

  it("forgets who is online if the new connection will not tell, but not what it has told", async () => {
    await online();
    const old = FakeSocket.last;
    const stop = client.watchPresence({ users: ["bob"] });
    await vi.advanceTimersByTimeAsync(50);
    const value = create(PresenceSchema, { users: [create(UserPresenceSchema, { userId: "bob", online: true })] });
    const refusal: Kind = { case: "error", value: create(ErrorSchema, { reason: "too_large" }) };
    await old.say({ case: "presence", value }, (await old.of("watchPresence"))[0]!.id);
    const stopGroup = client.watchPresence({ conversations: ["g_big"] });
    await vi.advanceTimersByTimeAsync(50);
    await old.say(refusal, (await old.of("watchPresence"))[0]!.id);
    expect(client.presence("bob")?.online).toBe(true);
    await old.say(drain);
    await vi.advanceTimersByTimeAsync(1_840);
    const next = FakeSocket.last;
    await next.open();
    await next.welcome();
    await vi.advanceTimersByTimeAsync(50);
    expect(client.presence("bob")?.online).toBe(true);
    let told = 0;
    client.on({ presence: () => told++ });
    await next.say(refusal, (await next.of("watchPresence"))[0]!.id);
    expect(client.presence("bob")).toBeUndefined();
    expect(told).toBe(1);
    stop();
    stopGroup();
  });

  it("waits if the new connection is lost after it has taken over", async () => {
    await online();
    const old = FakeSocket.last;
    await old.say(drain);
    await vi.advanceTimersByTimeAsync(1_840);
    await FakeSocket.last.open();
    await old.say(bye(4507, "superseded"));
    await FakeSocket.last.drop();
    expect(client.state).toMatchObject({ phase: "waiting", draining: false });
    await vi.advanceTimersByTimeAsync(500);
    await FakeSocket.last.welcome();
    expect(client.state).toMatchObject({ phase: "online", draining: false });
  });

  it("syncs again on the old connection if the new one, which had begun to, fails", async () => {
    await online();
    const old = FakeSocket.last;
    await old.say(drain);
    await old.say({ case: "head", value: create(HeadSchema, { conversationId: "g_new", seq: 1n }) });
    await old.frames();
    await vi.advanceTimersByTimeAsync(1_840);
    await FakeSocket.last.drop();
    expect(await old.of("sync")).toHaveLength(1);
  });

  it("stays on the old connection while the new one fails", async () => {
    await online();
    const old = FakeSocket.last;
    await old.say(drain);
    await vi.advanceTimersByTimeAsync(1_840);
    await FakeSocket.last.drop();
    expect(client.state).toMatchObject({ phase: "online", draining: true });
    await vi.advanceTimersByTimeAsync(500);
    expect(FakeSocket.all).toHaveLength(3);
    await old.drop(4000);
    expect(client.state.phase).toBe("joining");
    await FakeSocket.last.welcome();
    expect(client.state).toMatchObject({ phase: "online", draining: false });
  });
});

describe("a hello that is taken after it was given up", () => {
  const superseded = bye(4507, "superseded");

  /** The connection breaks, and the next one opens, writes hello and gets no answer. */
  async function unanswered(): Promise<FakeSocket> {
    await FakeSocket.last.drop();
    await again();
    await FakeSocket.last.open();
    return FakeSocket.last;
  }

  /** The wait is over. */
  async function again(): Promise<void> {
    const before = FakeSocket.all.length;
    client.wake();
    await vi.advanceTimersByTimeAsync(0);
    expect(FakeSocket.all).toHaveLength(before + 1);
  }

  /** The next attempt succeeds. */
  async function back(): Promise<void> {
    await again();
    await FakeSocket.last.welcome();
    await FakeSocket.last.synced();
    expect(client.state.phase).toBe("online");
  }

  it("does not end the client, once for each", async () => {
    await online();
    await unanswered();
    await vi.advanceTimersByTimeAsync(10_000);
    await back();
    await (await unanswered()).drop();
    await back();
    for (let n = 0; n < 2; n++) {
      await FakeSocket.last.say(superseded);
      expect(client.state).toMatchObject({ phase: "waiting", reason: "superseded" });
      await back();
    }
    await FakeSocket.last.say(superseded);
    expect(client.state).toMatchObject({ phase: "stopped", reason: "superseded" });
  });

  it("may be taken before the next welcome", async () => {
    await online();
    await (await unanswered()).drop();
    await again();
    await FakeSocket.last.open();
    await FakeSocket.last.say(superseded);
    expect(client.state.phase).toBe("waiting");
    await back();
    await FakeSocket.last.say(superseded);
    expect(client.state.phase).toBe("stopped");
  });

  it("may be one that was stopped by the program", async () => {
    await online();
    await unanswered();
    client.stop();
    client.start();
    await vi.advanceTimersByTimeAsync(0);
    await FakeSocket.last.welcome();
    await FakeSocket.last.say(superseded);
    expect(client.state.phase).toBe("waiting");
  });

  it.each([[120_000, "waiting"], [120_001, "stopped"]])("is allowed for after %i ms: %s", async (ms, phase) => {
    await online();
    await (await unanswered()).drop();
    await back();
    for (let left = ms; left > 0; left -= 20_000) {
      await FakeSocket.last.say({ case: "ping", value: create(PingSchema, { intervalMs: 25_000 }) });
      await vi.advanceTimersByTimeAsync(Math.min(left, 20_000));
    }
    await FakeSocket.last.say(superseded);
    expect(client.state.phase).toBe(phase);
  });

  it("is none if it was refused, or not written", async () => {
    await online();
    await (await unanswered()).say(bye(4003, "busy"));
    await again();
    await FakeSocket.last.drop();
    await back();
    await FakeSocket.last.say(superseded);
    expect(client.state.phase).toBe("stopped");
  });

  it("may end the connection from which it was to move", async () => {
    await online();
    const old = FakeSocket.last;
    await old.say({ case: "drain", value: create(DrainSchema, { reconnectAfterMs: 0 }) });
    await vi.advanceTimersByTimeAsync(0);
    await FakeSocket.last.open();
    await FakeSocket.last.drop();
    await old.say(superseded);
    expect(client.state.phase).toBe("waiting");
    await back();
    await FakeSocket.last.say(superseded);
    expect(client.state.phase).toBe("stopped");
  });

  it("may be one whose token came after the wait for the next had begun", async () => {
    await online();
    let give = (_: string) => {};
    heldToken = new Promise((resolve) => (give = resolve));
    await FakeSocket.last.say({ case: "drain", value: create(DrainSchema, { reconnectAfterMs: 0 }) });
    await vi.advanceTimersByTimeAsync(0);
    await FakeSocket.last.drop();
    expect(client.state.phase).toBe("waiting");
    heldToken = undefined;
    give("T");
    await vi.advanceTimersByTimeAsync(0);
    await FakeSocket.last.open();
    await back();
    await FakeSocket.last.say(superseded);
    expect(client.state.phase).toBe("waiting");
  });

  it("excuses nothing more if it has ended the connection before it was given up", async () => {
    await online();
    const old = FakeSocket.last;
    await old.say({ case: "drain", value: create(DrainSchema, { reconnectAfterMs: 0 }) });
    await vi.advanceTimersByTimeAsync(0);
    await FakeSocket.last.open();
    await old.say(superseded);
    await FakeSocket.last.drop();
    await back();
    await FakeSocket.last.say(superseded);
    expect(client.state.phase).toBe("stopped");
  });
});

describe("sending", () => {
  it("shows a message as pending, then as stored", async () => {
    const c = await online();
    const id = client.send(c, { text: "hi" });
    expect(c.items.at(-1)).toMatchObject({ kind: "local", key: id, local: { state: "pending" } });
    const [frame] = await FakeSocket.last.of("send");
    expect(frame!.value).toMatchObject({ to: { case: "conversationId", value: "g_1" }, clientMessageId: id });
    const value = create(SendAckSchema, { clientMessageId: id, status: Ack.OK, conversationId: "g_1", messageId: "77", seq: 1n });
    await FakeSocket.last.say({ case: "sendAck", value }, frame!.id);
    expect(c.items).toMatchObject([{ kind: "message", key: id, mine: true, entry: { seq: 1, messageId: "77" } }]);
    expect(client.waiting).toBe(0);
  });

  it("marks what is refused for good, and tries again with the same id", async () => {
    const c = await online();
    const failures: string[] = [];
    client.on({ failed: (_, error) => failures.push(error.reason) });
    const id = client.send(c, { text: "hi" });
    const [frame] = await FakeSocket.last.of("send");
    const error = create(ErrorSchema, { reason: "forbidden", code: "permission_denied" });
    await FakeSocket.last.say({ case: "sendAck", value: create(SendAckSchema, { clientMessageId: id, status: Ack.FAIL, error }) }, frame!.id);
    expect(c.items).toMatchObject([{ kind: "local", local: { state: "failed", reason: "forbidden" } }]);
    expect(failures).toEqual(["forbidden"]);
    client.retry(c, id);
    expect((await FakeSocket.last.of("send"))[0]!.value).toMatchObject({ clientMessageId: id, resend: true });
    client.withdraw(c, id);
    expect(c.items).toEqual([]);
  });

  it("sends again after a refusal in its time", async () => {
    const c = await online();
    const id = client.send(c, { text: "hi" });
    const [frame] = await FakeSocket.last.of("send");
    const error = create(ErrorSchema, { reason: "busy", retryable: true, retryAfterMs: 400 });
    await FakeSocket.last.say({ case: "sendAck", value: create(SendAckSchema, { clientMessageId: id, status: Ack.RETRY, error }) }, frame!.id);
    await vi.advanceTimersByTimeAsync(399);
    expect(await FakeSocket.last.of("send")).toEqual([]);
    await vi.advanceTimersByTimeAsync(1);
    const [again] = await FakeSocket.last.of("send");
    expect(again!.value).toMatchObject({ clientMessageId: id, resend: true });
    expect(again!.id).not.toBe(frame!.id);
  });

  it("refuses what no server takes", async () => {
    const c = await online();
    expect(() => client.send(c, { text: "é".repeat(8_193) })).toThrow(expect.objectContaining({ reason: "too_large" }));
    expect(() => client.send(c, { text: "\u0000" })).toThrow(expect.objectContaining({ reason: "bad_request" }));
    expect(client.waiting).toBe(0);
  });

  it("opens a direct conversation with the first message", async () => {
    await online();
    const c = client.direct("bob");
    expect(client.direct("bob")).toBe(c);
    const id = client.send(c, { text: "hello" });
    const [frame] = await FakeSocket.last.of("send");
    expect(frame!.value.to).toEqual({ case: "toUser", value: "bob" });
    const value = create(SendAckSchema, { clientMessageId: id, status: Ack.OK, conversationId: "d_1", messageId: "7", seq: 1n });
    await FakeSocket.last.say({ case: "sendAck", value }, frame!.id);
    expect(client.conversation("d_1")).toBe(c);
    expect(c.items).toMatchObject([{ kind: "message", key: id }]);
    await FakeSocket.last.synced([state(1, { id: "d_1", kind: ConversationKind.DIRECT, peer: "bob", from: 2 })]);
    expect(client.conversations.filter((x) => x.peerId === "bob")).toEqual([c]);
  });

  it("keeps unsent messages for the next start", async () => {
    const values = new Map<string, string>();
    const storage = {
      get length() {
        return values.size;
      },
      key: (i: number) => [...values.keys()][i] ?? null,
      getItem: (k: string) => values.get(k) ?? null,
      setItem: (k: string, v: string) => void values.set(k, v),
      removeItem: (k: string) => void values.delete(k),
    };
    const c = await online(0, { store: webStore(storage) });
    await FakeSocket.last.drop();
    const id = client.send(c, { text: "later" });
    client.send(client.direct("bob"), { text: "hello" });
    client.stop();
    expect(values.size).toBe(2);

    start({ store: webStore(storage) });
    expect(client.waiting).toBe(2);
    await vi.advanceTimersByTimeAsync(0);
    await FakeSocket.last.welcome();
    const frames = await FakeSocket.last.of("send");
    expect(frames.map((f) => [f.value.to.value, f.value.resend])).toEqual([["g_1", true], ["bob", true]]);
    await FakeSocket.last.synced([state(1, { entries: [entry(1, { sender: "me", clientMessageId: id, text: "later" })] })]);
    expect(values.size).toBe(1);
    expect(client.conversation("g_1")!.items).toMatchObject([{ kind: "message", key: id }]);
  });

  it("lives with a store that fails", () => {
    const broken = { length: 0, key: () => null, getItem: () => "{", setItem: () => { throw new Error("full"); }, removeItem: () => { throw new Error("off"); } };
    const store = webStore(broken);
    store.put("me", { clientMessageId: "a", conversation: "g", toUser: "", content: { text: "" }, at: 0, resend: false, failed: "" });
    store.delete("me", "a");
    expect(store.load("me")).toEqual([]);
    expect(memoryStore.load("me")).toEqual([]);
    start().stop();
  });
});

describe("receiving", () => {
  it("acknowledges after 250 ms, one frame for all", async () => {
    await online(2);
    await FakeSocket.last.say(deliver(entry(3)));
    await FakeSocket.last.say(deliver(entry(4)));
    await vi.advanceTimersByTimeAsync(249);
    expect(await FakeSocket.last.of("ack")).toEqual([]);
    await vi.advanceTimersByTimeAsync(1);
    const acks = await FakeSocket.last.of("ack");
    expect(acks.map((a) => a.value.ranges.map((r) => [r.conversationId, r.afterSeq, r.seq]))).toEqual([[["g_1", 2n, 4n]]]);
  });

  it("acknowledges at once after 32 entries", async () => {
    await online(0);
    await FakeSocket.last.say(deliver(...Array.from({ length: 32 }, (_, i) => entry(i + 1))));
    expect(await FakeSocket.last.of("ack")).toHaveLength(1);
  });

  it("acknowledges in large groups after 1 to 2 s", async () => {
    await online(0);
    client.conversation("g_1")!.memberCount = 101;
    await FakeSocket.last.say(deliver(entry(1)));
    await vi.advanceTimersByTimeAsync(999);
    expect(await FakeSocket.last.of("ack")).toEqual([]);
    await vi.advanceTimersByTimeAsync(1_001);
    expect(await FakeSocket.last.of("ack")).toHaveLength(1);
  });

  it("reads a gap after 200 ms and shows nothing out of order", async () => {
    await online(1);
    await FakeSocket.last.say(deliver(entry(4)));
    expect(textsOf()).toEqual(["m1"]);
    await vi.advanceTimersByTimeAsync(200);
    const [asking] = await FakeSocket.last.of("history");
    expect(asking!.value).toMatchObject({ conversationId: "g_1", afterSeq: 1n, beforeSeq: 4n, backward: false });
    const page = create(PageSchema, { entries: [entry(2), entry(3)], completeFrom: 2n, completeTo: 3n, end: true });
    await FakeSocket.last.say({ case: "historyResult", value: create(HistoryResultSchema, { conversationId: "g_1", page }) }, asking!.id);
    expect(textsOf()).toEqual(["m1", "m2", "m3", "m4"]);
  });

  it("follows a head, one request at a time, and waits after a refusal", async () => {
    await online(1);
    await FakeSocket.last.say({ case: "head", value: create(HeadSchema, { conversationId: "g_1", seq: 3n }) });
    const [asking] = await FakeSocket.last.of("history");
    expect(asking!.value).toMatchObject({ afterSeq: 1n, beforeSeq: 0n });
    await FakeSocket.last.say({ case: "error", value: create(ErrorSchema, { reason: "busy", retryable: true, retryAfterMs: 900 }) }, asking!.id);
    await vi.advanceTimersByTimeAsync(899);
    expect(await FakeSocket.last.of("history")).toEqual([]);
    await vi.advanceTimersByTimeAsync(1);
    expect(await FakeSocket.last.of("history")).toHaveLength(1);
  });

  it("syncs when a conversation is not known, and shows what came meanwhile", async () => {
    await online(0);
    const heard: string[] = [];
    client.on({ message: (c, e) => heard.push(`${c.id} ${e.seq}`) });
    const value = create(DeliverSchema, { conversationId: "g_2", entries: [entry(8, { prevSeq: 7 })] });
    await FakeSocket.last.say({ case: "deliver", value });
    const [sync] = await FakeSocket.last.of("sync");
    expect(sync!.value).toMatchObject({ syncToken: "t1", cursors: [{ conversationId: "g_1", have: 0n }] });
    await FakeSocket.last.synced([state(7, { id: "g_2", entries: [entry(7)], from: 7 })]);
    expect(textsOf(client.conversation("g_2"))).toEqual(["m7", "m8"]);
  });

  it("resumes with its cursors and reads on page by page", async () => {
    await online(3);
    await FakeSocket.last.drop();
    await vi.advanceTimersByTimeAsync(500);
    await FakeSocket.last.welcome();
    const [first] = await FakeSocket.last.of("sync");
    expect(first!.value).toMatchObject({ syncToken: "t1", cursors: [{ conversationId: "g_1", have: 3n }] });
    await FakeSocket.last.synced([state(4, { entries: [entry(4)], from: 4 })], { syncToken: "t2", more: true });
    const [second] = await FakeSocket.last.of("sync");
    expect(second!.value).toMatchObject({ syncToken: "t2", cursors: [{ have: 4n }] });
    await FakeSocket.last.synced([], { syncToken: "t3" });
    expect(textsOf()).toEqual(["m1", "m2", "m3", "m4"]);
    expect(client.conversations).toHaveLength(1);
  });

  it("forgets what a full list does not name", async () => {
    await online(1);
    await FakeSocket.last.drop();
    await vi.advanceTimersByTimeAsync(500);
    await FakeSocket.last.welcome();
    await FakeSocket.last.synced([state(1, { id: "g_9", entries: [entry(1)] })], { full: true });
    expect(client.conversations.map((c) => c.id)).toEqual(["g_9"]);
  });

  /** Breaks the connection and returns the sync of the next one. */
  async function resumed(onlineForMs = 11_000) {
    await vi.advanceTimersByTimeAsync(onlineForMs); // After 10 s the next connection comes soon.
    await FakeSocket.last.drop();
    await vi.advanceTimersByTimeAsync(1_000);
    await FakeSocket.last.welcome();
    return (await FakeSocket.last.of("sync"))[0]!.value;
  }

  const digestOf = (...heads: [id: string, head: number][]) => BigInt.asUintN(64, heads.reduce((sum, [id, head]) => sum + digestTerm(id, head), 0n));

  it("finds by the digest what a sync did not tell, and asks once for all heads", async () => {
    await online(2);
    expect((await resumed()).syncToken).toBe("t1");
    await FakeSocket.last.synced([], { syncToken: "t2", digest: digestOf(["g_1", 3], ["g_2", 1]) });
    const [repair] = await FakeSocket.last.of("sync");
    expect(repair!.value).toMatchObject({ syncToken: "", cursors: [], pageLimit: 0 });
    const bare = (head: number, id: string) => Object.assign(state(head, { id }), { page: undefined });
    await FakeSocket.last.synced([bare(3, "g_1")], { full: true, more: true, syncToken: "t3" });
    expect((await FakeSocket.last.of("sync"))[0]!.value).toMatchObject({ syncToken: "t3", pageLimit: 0 });
    await FakeSocket.last.synced([bare(1, "g_2")], { full: true, syncToken: "t4" });
    const asks = await FakeSocket.last.of("history");
    expect(asks.map((f) => [f.value.conversationId, f.value.afterSeq])).toEqual([["g_1", 2n], ["g_2", 0n]]);
    expect(client.repairs).toBe(1);
    expect(await resumed(5_000)).toMatchObject({ syncToken: "t4", pageLimit: 30 });
    await FakeSocket.last.synced([], { syncToken: "t5", digest: digestOf(["g_1", 3], ["g_2", 1]) });
    expect(await FakeSocket.last.of("sync")).toEqual([]);
    expect(client.state.synced).toBe(true);
  });

  it("is not led into a loop by a digest that is never right", async () => {
    await online(1);
    await resumed();
    await FakeSocket.last.synced([], { digest: 1n });
    expect(await FakeSocket.last.of("sync")).toHaveLength(1);
    await FakeSocket.last.synced([state(1, { entries: [entry(1)] })], { full: true, digest: 1n });
    for (let i = 0; i < 3; i++) {
      expect(await FakeSocket.last.of("sync")).toEqual([]);
      expect(client.state.synced).toBe(true);
      await resumed();
      await FakeSocket.last.synced([], { digest: 1n });
    }
    expect(client.repairs).toBe(1);
  });

  it("counts for the digest only what it is a member of", async () => {
    await online(4);
    await resumed();
    await FakeSocket.last.synced([Object.assign(state(9, { id: "g_2" }), { role: Role.UNSPECIFIED })], { digest: digestOf(["g_1", 4]) });
    expect(client.repairs).toBe(0);
  });

  it("goes on with a listing over a break, and asks once more what changed in it", async () => {
    start();
    await vi.advanceTimersByTimeAsync(0);
    await FakeSocket.last.welcome();
    await FakeSocket.last.synced([state(1, { entries: [entry(1)] })], { full: true, more: true, syncToken: "t2" });
    await FakeSocket.last.drop();
    await vi.advanceTimersByTimeAsync(500);
    await FakeSocket.last.welcome();
    await FakeSocket.last.synced([state(1, { id: "g_9", entries: [entry(1)] })], { full: true, syncToken: "t3" });
    expect(client.conversations.map((c) => c.id).sort()).toEqual(["g_1", "g_9"]);
    expect((await FakeSocket.last.of("sync")).at(-1)!.value).toMatchObject({ syncToken: "t3" });
  });

  it("does not take a sync answer of another history", async () => {
    start();
    await vi.advanceTimersByTimeAsync(0);
    await FakeSocket.last.welcome();
    const first = FakeSocket.last;
    await first.synced([state(1, { entries: [entry(1)] })], { full: true, dataEpoch: "e2" });
    expect(client.conversations).toEqual([]);
    await vi.advanceTimersByTimeAsync(1000);
    expect(FakeSocket.last).not.toBe(first);
  });

  it("begins anew when the store has another history, and keeps what was not sent", async () => {
    const c = await online(3);
    client.send(c, { text: "unsent" });
    await FakeSocket.last.drop();
    await vi.advanceTimersByTimeAsync(500);
    await FakeSocket.last.welcome({ dataEpoch: "e2" });
    expect(c.timeline.entries).toEqual([]);
    expect(await FakeSocket.last.of("send")).toHaveLength(1);
    await FakeSocket.last.synced([state(1, { entries: [entry(1, { text: "new" })] })], { full: true, dataEpoch: "e2" });
    expect(textsOf()).toEqual(["new"]);
    expect(c.items.at(-1)).toMatchObject({ kind: "local", local: { content: { text: "unsent" } } });
  });

  it("reads older pages and gaps on demand", async () => {
    start();
    await vi.advanceTimersByTimeAsync(0);
    await FakeSocket.last.welcome();
    await FakeSocket.last.synced([state(100, { entries: [entry(100)], from: 100 })], { full: true });
    const c = client.conversation("g_1")!;
    expect(c.timeline.older).toBe(true);
    await FakeSocket.last.frames();
    void client.loadOlder(c);
    void client.loadOlder(c);
    const asking = await FakeSocket.last.of("history");
    expect(asking).toHaveLength(1);
    expect(asking[0]!.value).toMatchObject({ beforeSeq: 100n, backward: true });
    const page = create(PageSchema, { entries: [entry(98), entry(99)], completeFrom: 1n, completeTo: 99n, end: true });
    await FakeSocket.last.say({ case: "historyResult", value: create(HistoryResultSchema, { page }) }, asking[0]!.id);
    expect(textsOf()).toEqual(["m98", "m99", "m100"]);
    expect(c.timeline.older).toBe(false);
    expect(c.loading).toBe(false);
  });

  it("takes the newest page when far behind, and fills the gap backward", async () => {
    const c = await online(1);
    await FakeSocket.last.say({ case: "head", value: create(HeadSchema, { conversationId: "g_1", seq: 2_000n }) });
    const [jump] = await FakeSocket.last.of("history");
    expect(jump!.value).toMatchObject({ beforeSeq: 0n, backward: true });
    const newest = create(PageSchema, { entries: [entry(2_000)], completeFrom: 2_000n, completeTo: 2_000n });
    await FakeSocket.last.say({ case: "historyResult", value: create(HistoryResultSchema, { page: newest }) }, jump!.id);
    expect(c.items.map((i) => i.kind)).toEqual(["message", "gap", "message"]);
    void client.loadGap(c, { from: 2, to: 1_999 });
    const [asking] = await FakeSocket.last.of("history");
    expect(asking!.value).toMatchObject({ afterSeq: 1n, beforeSeq: 2_000n, backward: true });
    const page = create(PageSchema, { entries: [entry(5)], completeFrom: 2n, completeTo: 1_999n, end: true });
    await FakeSocket.last.say({ case: "historyResult", value: create(HistoryResultSchema, { page }) }, asking!.id);
    expect(c.items.map((i) => i.kind)).toEqual(["message", "message", "message"]);
  });
});

describe("reading", () => {
  it("tells the server at most once a second, and takes its count", async () => {
    const c = await online(0);
    await FakeSocket.last.say(deliver(entry(1), entry(2)));
    expect(c.timeline.unread).toBe(2);
    client.read(c, 1);
    client.read(c, 2);
    expect(c.timeline.unread).toBe(0);
    const [first] = await FakeSocket.last.of("read");
    expect(first!.value).toMatchObject({ conversationId: "g_1", seq: 2n });
    const value = create(ReceiptSchema, { conversationId: "g_1", userId: "me", readSeq: 2n, deliveredSeq: 2n, unreadCount: 0 });
    await FakeSocket.last.say({ case: "receipt", value }, first!.id);
    await FakeSocket.last.say(deliver(entry(3)));
    client.read(c, 3);
    await vi.advanceTimersByTimeAsync(900);
    expect(await FakeSocket.last.of("read")).toEqual([]);
    await vi.advanceTimersByTimeAsync(100);
    expect(await FakeSocket.last.of("read")).toHaveLength(1);
  });

  it("tells again on the next connection what was not answered", async () => {
    const c = await online(2);
    client.read(c, 2);
    expect(await FakeSocket.last.of("read")).toHaveLength(1);
    await FakeSocket.last.drop();
    await vi.advanceTimersByTimeAsync(500);
    await FakeSocket.last.welcome();
    await vi.advanceTimersByTimeAsync(1_000);
    expect(await FakeSocket.last.of("read")).toHaveLength(1);
  });

  it("marks messages by the receipts of others", async () => {
    const c = await online(1);
    c.memberCount = 3;
    const receipt = (userId: string, deliveredSeq: bigint, readSeq: bigint): Kind => ({
      case: "receipt",
      value: create(ReceiptSchema, { conversationId: "g_1", userId, deliveredSeq, readSeq }),
    });
    expect(c.mark(1)).toBe("sent");
    await FakeSocket.last.say(receipt("bob", 1n, 1n));
    expect(c.mark(1)).toBe("sent");
    await FakeSocket.last.say(receipt("carol", 1n, 0n));
    expect(c.mark(1)).toBe("delivered");
    await FakeSocket.last.say(receipt("carol", 0n, 1n));
    expect(c.mark(1)).toBe("read");
    expect(c.reach(1)).toEqual({ delivered: 2, read: 2, of: 2 });
  });
});

describe("presence", () => {
  const presence = (...users: { userId: string; online?: boolean; classes?: string[]; lastSeenMs?: bigint }[]): Kind => ({
    case: "presence",
    value: create(PresenceSchema, { users: users.map((u) => create(UserPresenceSchema, u)) }),
  });

  it("asks once for all that is watched, and again on the next connection", async () => {
    await online();
    const stop = client.watchPresence({ users: ["bob", "anna"] });
    const stopGroup = client.watchPresence({ users: ["bob"], conversations: ["g_1"] });
    await vi.advanceTimersByTimeAsync(50);
    const [question, ...others] = await FakeSocket.last.of("watchPresence");
    expect(question!.value).toMatchObject({ userIds: ["anna", "bob"], conversationIds: ["g_1"] });
    expect(others).toEqual([]);
    let told = 0;
    client.on({ presence: () => told++ });
    await FakeSocket.last.say(presence({ userId: "bob", online: true, classes: ["phone"] }, { userId: "anna", lastSeenMs: 5n }), question!.id);
    expect(client.presence("bob")).toEqual({ online: true, classes: ["phone"], lastSeenAt: 0 });
    await FakeSocket.last.say(presence({ userId: "bob", lastSeenMs: 9n }));
    expect(client.presence("bob")).toEqual({ online: false, classes: [], lastSeenAt: 9 });
    expect(told).toBe(2);
    await FakeSocket.last.drop();
    expect(client.presence("bob")).toBeUndefined();
    await vi.advanceTimersByTimeAsync(600);
    await FakeSocket.last.welcome();
    await vi.advanceTimersByTimeAsync(50);
    expect(await FakeSocket.last.of("watchPresence")).toHaveLength(1);
    stopGroup();
    stop();
    await vi.advanceTimersByTimeAsync(50);
    expect((await FakeSocket.last.of("watchPresence"))[0]!.value).toMatchObject({ userIds: [], conversationIds: [] });
  });

  it("asks again after a refusal that passes, and not after another one", async () => {
    await online();
    const stop = client.watchPresence({ users: ["bob"] });
    await vi.advanceTimersByTimeAsync(50);
    const [first] = await FakeSocket.last.of("watchPresence");
    await FakeSocket.last.say({ case: "error", value: create(ErrorSchema, { reason: "busy", retryable: true, retryAfterMs: 1_000 }) }, first!.id);
    await vi.advanceTimersByTimeAsync(2_000);
    const [second] = await FakeSocket.last.of("watchPresence");
    await FakeSocket.last.say({ case: "error", value: create(ErrorSchema, { reason: "forbidden" }) }, second!.id);
    await vi.advanceTimersByTimeAsync(60_000);
    expect(await FakeSocket.last.of("watchPresence")).toEqual([]);
    stop();
    await vi.advanceTimersByTimeAsync(50);
  });

  it("tells who types, until they write or stop", async () => {
    const c = await online(1);
    const says = (userId: string): Kind => ({ case: "typing", value: create(TypingSchema, { conversationId: "g_1", userId }) });
    await FakeSocket.last.say(says("bob"));
    await FakeSocket.last.say(says("anna"));
    await FakeSocket.last.say(says("me"));
    expect([...c.typing]).toEqual(["bob", "anna"]);
    await FakeSocket.last.say(deliver(entry(2)));
    expect([...c.typing]).toEqual(["anna"]);
    await vi.advanceTimersByTimeAsync(6_000);
    expect([...c.typing]).toEqual([]);
    await FakeSocket.last.say(says("bob"));
    await FakeSocket.last.drop();
    expect([...c.typing]).toEqual([]);
  });

  it("says every three seconds that the user types", async () => {
    const c = await online(1);
    for (let i = 0; i < 10; i++) {
      client.typing(c);
      await vi.advanceTimersByTimeAsync(400);
    }
    expect(await FakeSocket.last.of("typing")).toHaveLength(2);
    client.send(c, { text: "x" });
    client.typing(c);
    expect(await FakeSocket.last.of("typing")).toHaveLength(1);
  });
});

describe("announcements", () => {
  const say = (seq: number, text = `news ${seq}`): Kind => ({ case: "announcement", value: create(AnnouncementSchema, { seq: BigInt(seq), text }) });
  const takeBack = (seq: number, number: number): Kind => ({
    case: "announcement",
    value: create(AnnouncementSchema, { seq: BigInt(seq), withdrawn: true, withdrawalSeq: BigInt(number) }),
  });

  it("tells each once, and says in hello which it has shown", async () => {
    let kept: AnnouncementCursor = { seq: 3, epoch: "e1" };
    await online(0, { announcements: { load: () => kept, save: (_, cursor) => (kept = cursor) } });
    const told: string[] = [];
    client.on({ announcement: (a) => told.push(a.text), announcementGone: (seq) => told.push(`gone ${seq}`) });
    for (const frame of [say(3), say(4), say(4), say(6), say(5), takeBack(4, 7), takeBack(4, 7), takeBack(6, 0)]) await FakeSocket.last.say(frame);
    expect(told).toEqual(["news 4", "news 6", "gone 4", "gone 6"]);
    expect(kept).toEqual({ seq: 7, epoch: "e1" });
    const hello = FakeSocket.last.envelopes.flat().find((f) => f.kind.case === "hello");
    expect(hello!.kind.value).toMatchObject({ announcementSeq: 3n, announcementEpoch: "e1" });
  });

  it("begins anew with another history of the store", async () => {
    await online(0, { announcements: { load: () => ({ seq: 9, epoch: "e0" }), save: () => {} } });
    const told: number[] = [];
    client.on({ announcement: (a) => told.push(a.seq) });
    await FakeSocket.last.say(say(1));
    expect(told).toEqual([1]);
  });
});
