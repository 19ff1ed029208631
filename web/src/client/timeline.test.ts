// The timeline against the vectors that every client of this repository passes.

import { readFileSync } from "node:fs";
import { fromJson } from "@bufbuild/protobuf";
import { describe, expect, it } from "vitest";
import { ConversationStateSchema, EntryKindSchema, EntrySchema, PageSchema, ReceiptSchema, SendAckSchema } from "../gen/imd/client/v1/client_pb.js";
import { EntryKind, entryOf, pageOf, receiptOf, stateOf } from "./model.js";
import { type Effects, type HistoryRequest, Timeline } from "./timeline.js";

interface Step {
  op: string;
  now?: number;
  want?: Record<string, unknown>;
  [key: string]: any;
}

interface Case {
  name: string;
  self: string;
  keep?: number;
  steps: Step[];
  end: Record<string, unknown>;
}

const file = new URL("../../../sdk/testdata/timeline.json", import.meta.url);
const { cases } = JSON.parse(readFileSync(file, "utf8")) as { cases: Case[] };

describe("timeline vectors", () => {
  it("are all here", () => {
    expect(cases.length).toBeGreaterThanOrEqual(25);
  });
  for (const c of cases) {
    it(c.name, () => {
      const timeline = new Timeline(c.self, { keep: c.keep ?? 0 });
      c.steps.forEach((step, i) => expect(run(timeline, step), `step ${i} ${step.op}`).toEqual(step.want ?? {}));
      expect(endOf(timeline)).toEqual(c.end);
      expect(timeline.items.filter((item) => item.kind === "gap")).toHaveLength(timeline.gaps.length);
    });
  }
});

describe("pace", () => {
  it("spreads what is read because of a hint or a gap, and nothing else", () => {
    const timeline = new Timeline("alice", { keep: 0 });
    timeline.restore(0, 0, 1);
    timeline.pace(300);
    expect(timeline.head(1_000, 5).history).toBeUndefined();
    expect(timeline.head(1_200, 6).history).toBeUndefined();
    expect(timeline.wakeAt).toBe(1_300);
    expect(timeline.tick(1_300).history).toMatchObject({ after: 1 });
  });
});

function run(timeline: Timeline, step: Step): Record<string, unknown> {
  const now = step.now ?? 0;
  switch (step.op) {
    case "restore":
      timeline.restore(step.start, step.from, step.have);
      return {};
    case "deliver":
      return seen(timeline.deliver(now, step.entries.map((e: any) => entryOf(fromJson(EntrySchema, e)))));
    case "sendAck": {
      const ack = fromJson(SendAckSchema, step.sendAck);
      const { clientMessageId, messageId } = ack;
      return seen(timeline.sendAck(now, { clientMessageId, messageId, seq: Number(ack.seq), prevSeq: Number(ack.prevSeq), at: Number(ack.serverTimeMs) }));
    }
    case "page":
      return seen(timeline.page(now, requestOf(step.request), pageOf(fromJson(PageSchema, step.page))));
    case "state":
      return seen(timeline.state(now, step.cursor, stateOf(fromJson(ConversationStateSchema, step.state))));
    case "head":
      return seen(timeline.head(now, step.seq));
    case "receipt": {
      const receipt = receiptOf(fromJson(ReceiptSchema, step.receipt));
      if (receipt.userId === timeline.self) timeline.receipt(receipt.readSeq, receipt.unreadCount);
      return {};
    }
    case "send": {
      const entry = entryOf(fromJson(EntrySchema, step.entry));
      timeline.send({ clientMessageId: entry.clientMessageId, content: entry.content ?? {}, targetSeq: entry.targetSeq, at: now });
      return {};
    }
    case "fail":
      timeline.fail(step.clientMessageId, step.reason);
      return {};
    case "withdraw":
      timeline.withdraw(step.clientMessageId);
      return {};
    case "tick":
      return seen(timeline.tick(now));
    case "disconnected":
      timeline.disconnected();
      return {};
    case "connected":
      timeline.connected();
      return {};
    case "synced":
      return seen(timeline.synced(now));
    case "historyFailed":
      timeline.historyFailed(now, step.retryAfter);
      return {};
    case "resync":
      return present({ dropped: timeline.resync() });
    case "takeAcks": {
      const due = timeline.ackDue;
      const acks = timeline.takeAcks().map((r) => [r.after, r.seq]);
      expect(due).toBe(acks.length > 0);
      return present({ acks });
    }
    default:
      throw new Error(`unknown op ${step.op}`);
  }
}

function requestOf(request: Partial<HistoryRequest>): HistoryRequest {
  return { after: 0, before: 0, backward: false, jump: false, ...request };
}

function seen(fx: Effects): Record<string, unknown> {
  const { history } = fx;
  return present({
    show: fx.show.map((e) => e.seq),
    changed: fx.changed,
    sent: fx.sent,
    ...(history && { history: { after: history.after, ...present({ before: history.before, backward: history.backward, jump: history.jump }) } }),
    sync: fx.sync,
    reset: fx.reset,
  });
}

function endOf(timeline: Timeline): Record<string, unknown> {
  const items: unknown[] = timeline.entries.map((e) => {
    const message = e.kind === EntryKind.MESSAGE;
    return present({
      seq: e.seq,
      text: e.content?.text ?? "",
      kind: message ? "" : EntryKindSchema.value[e.kind]!.name,
      recalled: message && !e.content,
      changedSeq: e.changedSeq,
    });
  });
  for (const l of timeline.locals) items.push(present({ [l.state]: l.clientMessageId, text: l.content.text ?? "", reason: l.reason }));
  const { unread, readSeq, aside, older } = timeline;
  const gaps = timeline.gaps.map((g) => [g.from, g.to]);
  return { have: timeline.have, items, ...present({ unread, readSeq, aside, gaps, older }) };
}

/** Without what is zero, false or empty: absent means just that. */
function present(values: Record<string, unknown>): Record<string, unknown> {
  return Object.fromEntries(Object.entries(values).filter(([, v]) => v && !(Array.isArray(v) && v.length === 0)));
}
