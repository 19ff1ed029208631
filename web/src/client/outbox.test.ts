import { describe, expect, it } from "vitest";
import { Outbox, type OutboxItem, type OutboxSend, unansweredLimit } from "./outbox.js";

let at = 0;
function item(id: string, conversation = "g_1"): OutboxItem {
  return { clientMessageId: id, conversation, toUser: "", content: { text: id }, at: ++at, resend: false, failed: "" };
}

/** An outbox with frame ids that count up, and answers by message id to the newest copy. */
function setup(...ids: string[]) {
  const outbox = new Outbox();
  let frame = 0;
  const frames = new Map<string, number>();
  for (const id of ids) outbox.add(item(id));
  const take = (now = 0): OutboxSend[] => {
    const sends = outbox.take(now, () => ++frame);
    for (const s of sends) frames.set(s.item.clientMessageId, s.frameId);
    return sends;
  };
  const answer = (id: string, status: "ok" | "retry" | "fail", more: { now?: number; reason?: string; retryAfterMs?: number; frameId?: number } = {}) =>
    outbox.answer(
      { frameId: more.frameId ?? frames.get(id)!, clientMessageId: id, status, reason: more.reason ?? "busy", retryAfterMs: more.retryAfterMs ?? 0 },
      more.now ?? 0,
    );
  return { outbox, take, answer };
}

const idsOf = (sends: OutboxSend[]) => sends.map((s) => s.item.clientMessageId);
const flagsOf = (sends: OutboxSend[]) => sends.map((s) => `${s.item.clientMessageId}${s.item.resend ? " resend" : ""}${s.runStart ? " start" : ""}`);

describe("outbox", () => {
  it("sends each message once, in order, without waiting for answers", () => {
    const { take } = setup("a", "b", "c");
    expect(flagsOf(take())).toEqual(["a", "b", "c"]);
    expect(take()).toEqual([]);
  });

  it("keeps to so many unanswered sends", () => {
    const ids = Array.from({ length: unansweredLimit + 3 }, (_, i) => `m${i}`);
    const { take, answer, outbox } = setup(...ids);
    expect(idsOf(take())).toEqual(ids.slice(0, unansweredLimit));
    expect(take()).toEqual([]);
    answer("m0", "ok");
    answer("m1", "fail");
    expect(idsOf(take())).toEqual(ids.slice(unansweredLimit, unansweredLimit + 2));
    expect(outbox.unanswered).toBe(unansweredLimit);
  });

  it("after a refusal waits, then sends from the refused message on, in order", () => {
    const { take, answer } = setup("a", "b", "c");
    const [, first] = take();
    answer("a", "ok");
    answer("b", "retry", { now: 100, retryAfterMs: 400 });
    expect(answer("c", "retry", { now: 101, reason: "behind" })).toBeUndefined();
    expect(take(499)).toEqual([]);
    expect(flagsOf(take(500))).toEqual(["b resend", "c resend"]);
    answer("b", "retry", { frameId: first!.frameId, now: 510 });
    expect(take(10_000)).toEqual([]);
  });

  it("takes a late ACK_OK of a former copy", () => {
    const { take, answer, outbox } = setup("a");
    const [first] = take();
    answer("a", "retry", { retryAfterMs: 100 });
    take(100);
    expect(answer("a", "ok", { frameId: first!.frameId })?.clientMessageId).toBe("a");
    expect(outbox.size).toBe(0);
  });

  it("waits as told when told, and ever longer while the store is out of reach", () => {
    const { take, answer, outbox } = setup("a");
    const waits: number[] = [];
    let now = 0;
    for (const reason of ["rate_limited", "unavailable", "unavailable", "internal"]) {
      take(now);
      answer("a", "retry", { now, reason, retryAfterMs: reason === "rate_limited" ? 1_000 : 0 });
      waits.push(outbox.wakeAt(now)! - now);
      now = outbox.wakeAt(now)!;
    }
    expect(waits).toEqual([1_000, 1_000, 2_000, 4_000]);
    for (let i = 0; i < 10; i++) {
      take(now);
      answer("a", "retry", { now, reason: "unavailable" });
      now = outbox.wakeAt(now)!;
    }
    take(now);
    answer("a", "retry", { now, reason: "unavailable" });
    expect(outbox.wakeAt(now)! - now).toBe(30_000);
  });

  it("a message refused for good holds nothing back, and goes last when tried again", () => {
    const { take, answer, outbox } = setup("a", "b");
    take();
    expect(answer("a", "fail", { reason: "forbidden" })).toMatchObject({ failed: "forbidden" });
    expect(outbox.size).toBe(1);
    outbox.add(item("c"));
    expect(idsOf(take())).toEqual(["c"]);
    outbox.retry("a");
    expect(flagsOf(take())).toEqual(["a resend"]);
    expect(outbox.retry("a")).toBeUndefined();
  });

  it("says so when the refused message is withdrawn", () => {
    const { take, answer, outbox } = setup("a", "b", "c");
    take();
    answer("a", "retry", { retryAfterMs: 5_000 });
    expect(outbox.withdraw("a")?.clientMessageId).toBe("a");
    expect(flagsOf(take())).toEqual(["b resend start", "c resend"]);
  });

  it("says so with a later message if none waits", () => {
    const { take, answer, outbox } = setup("a");
    take();
    answer("a", "retry");
    outbox.withdraw("a");
    expect(take(60_000)).toEqual([]);
    outbox.add(item("b"));
    expect(flagsOf(take())).toEqual(["b start"]);
    outbox.add(item("c"));
    expect(flagsOf(take())).toEqual(["c"]);
  });

  it("says so when the refused message turns out to be stored", () => {
    const { take, answer, outbox } = setup("a", "b");
    take();
    answer("a", "retry", { retryAfterMs: 5_000 });
    outbox.settle("a");
    expect(flagsOf(take())).toEqual(["b resend start"]);
  });

  it("says so when the server waits for what is not here any more", () => {
    const { take, answer } = setup("a", "b");
    take();
    answer("a", "ok");
    answer("b", "retry", { reason: "behind" });
    expect(flagsOf(take())).toEqual(["b resend start"]);
  });

  it("withdrawing what was not refused changes nothing else", () => {
    const { take, outbox } = setup("a", "b");
    outbox.withdraw("a");
    expect(flagsOf(take())).toEqual(["b"]);
    expect(outbox.withdraw("x")).toBeUndefined();
  });

  it("sends everything again on a new connection", () => {
    const { take, answer, outbox } = setup("a", "b");
    take();
    answer("a", "retry", { retryAfterMs: 9_000 });
    outbox.add(item("c"));
    outbox.disconnected();
    expect(flagsOf(take())).toEqual(["a resend", "b resend", "c"]);
  });

  it("conversations do not wait for each other", () => {
    const { take, answer, outbox } = setup("a");
    outbox.add(item("x", "g_2"));
    take();
    answer("a", "retry", { retryAfterMs: 9_000 });
    outbox.add(item("y", "g_2"));
    expect(idsOf(take())).toEqual(["y"]);
    expect(outbox.wakeAt(0)).toBe(9_000);
  });

  it("follows a conversation to its id", () => {
    const outbox = new Outbox();
    outbox.add({ ...item("a", "@bob"), toUser: "bob" });
    outbox.add({ ...item("b", "@bob"), toUser: "bob", failed: "forbidden" });
    expect(outbox.rename("@bob", "d_1").map((i) => i.conversation)).toEqual(["d_1", "d_1"]);
    outbox.add(item("c", "d_1"));
    let frame = 0;
    const sends = outbox.take(0, () => ++frame);
    expect(sends.map((s) => [s.item.clientMessageId, s.item.conversation, s.item.toUser])).toEqual([
      ["a", "d_1", "bob"],
      ["c", "d_1", ""],
    ]);
    expect(outbox.items.map((i) => i.clientMessageId).sort()).toEqual(["a", "b", "c"]);
  });
});
