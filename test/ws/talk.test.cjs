// A third-party client: the npm package ws and the published schema, nothing
// of ours. Runs the main exchanges of docs/protocol.md in both encodings.
const assert = require("node:assert/strict");
const { randomUUID } = require("node:crypto");
const { readFileSync } = require("node:fs");
const test = require("node:test");
const WebSocket = require("ws");
const { createFileRegistry, fromBinary, fromJson, toBinary, toJson } = require("@bufbuild/protobuf");
const { FileDescriptorSetSchema } = require("@bufbuild/protobuf/wkt");

const registry = createFileRegistry(fromBinary(FileDescriptorSetSchema, readFileSync(process.env.SCHEMA)));
const ClientFrame = registry.getMessage("imd.client.v1.ClientFrame");
const ServerFrame = registry.getMessage("imd.client.v1.ServerFrame");
const base = process.env.ADDR;

function varint(n) {
  const out = [];
  for (; n > 127; n >>>= 7) out.push((n & 127) | 128);
  out.push(n);
  return Buffer.from(out);
}

const encodings = {
  "imd.v1.json": {
    encode: (frames) => frames.map((f) => JSON.stringify(f)).join("\n"),
    decode: (data, binary) => {
      assert.equal(binary, false);
      return data.toString().split("\n").filter((l) => l.trim()).map((l) => JSON.parse(l));
    },
  },
  "imd.v1.proto": {
    encode: (frames) => Buffer.concat(frames.flatMap((f) => {
      const b = Buffer.from(toBinary(ClientFrame, fromJson(ClientFrame, f, { registry })));
      return [varint(b.length), b];
    })),
    decode: (data, binary) => {
      assert.equal(binary, true);
      const out = [];
      for (let at = 0; at < data.length; ) {
        let n = 0, shift = 0, b;
        do { b = data[at++]; n |= (b & 127) << shift; shift += 7; } while (b & 128);
        out.push(toJson(ServerFrame, fromBinary(ServerFrame, data.subarray(at, at + n)), { registry }));
        at += n;
      }
      return out;
    },
  },
};

// Device is one connection; frames that came and nobody has taken wait in inbox.
class Device {
  constructor(sub) {
    this.codec = encodings[sub];
    this.ws = new WebSocket(`ws://${base}/v1/ws`, [sub]);
    this.inbox = [];
    this.waiting = [];
    this.closed = new Promise((done) => this.ws.on("close", (code, reason) => done({ code, reason: reason.toString() })));
    this.ws.on("message", (data, binary) => {
      for (const f of this.codec.decode(data, binary)) {
        if (f.ping) this.write({ pong: {} });
        else this.inbox.push(f);
      }
      this.waiting.splice(0).forEach((again) => again());
    });
  }
  async open() {
    await new Promise((ok, bad) => this.ws.once("open", ok).once("error", bad));
    return this;
  }
  write(...frames) { this.ws.send(this.codec.encode(frames)); }
  async take(what, match) {
    const deadline = Date.now() + 30_000; // for what never comes; a busy machine takes seconds
    for (;;) {
      const at = this.inbox.findIndex(match);
      if (at >= 0) return this.inbox.splice(at, 1)[0];
      const left = deadline - Date.now();
      assert.ok(left > 0, `${what} did not come; waiting: ${JSON.stringify(this.inbox)}`);
      await new Promise((again) => { this.waiting.push(again); setTimeout(again, left); });
    }
  }
  answer(id) { return this.take(`the answer to ${id}`, (f) => f.id === id); }
}

async function login(sub, token, deviceId) {
  const d = await new Device(sub).open();
  d.write({ id: 1, hello: { version: 1, token, deviceId, class: "web", client: "ws-test" } }, { id: 2, sync: { pageLimit: 20 } });
  d.welcome = (await d.answer(1)).welcome;
  assert.ok(d.welcome, "welcome");
  d.sync = (await d.answer(2)).syncResult;
  assert.ok(d.sync, "sync_result");
  return d;
}

for (const sub of Object.keys(encodings)) {
  test(`two people talk over ${sub}`, async (t) => {
    const alice = await login(sub, process.env.ALICE, "a-" + sub);
    const bob = await login(sub, process.env.BOB, "b-" + sub);
    t.after(() => { alice.ws.close(); bob.ws.close(); });
    assert.equal(alice.welcome.userId, "alice");
    assert.equal(alice.sync.dataEpoch, alice.welcome.dataEpoch);

    const send = { toUser: "bob", clientMessageId: randomUUID(), content: { text: "hello \u{1F600}", attributes: { a: "b" } } };
    alice.write({ id: 3, send });
    const first = (await alice.answer(3)).sendAck;
    assert.equal(first.status, "ACK_OK");
    assert.match(first.conversationId, /^d_/);
    assert.equal(typeof first.messageId, "string");

    const got = await bob.take("the deliver", (f) => f.deliver?.entries[0].clientMessageId === send.clientMessageId);
    const entry = got.deliver.entries[0];
    assert.equal(entry.seq, first.seq);
    assert.equal(entry.sender, "alice");
    assert.equal(entry.content.text, "hello \u{1F600}");

    bob.write({ ack: { ranges: [{ conversationId: first.conversationId, afterSeq: entry.prevSeq ?? "0", seq: entry.seq }] } });
    await alice.take("the delivered receipt", (f) => f.receipt?.userId === "bob" && f.receipt.deliveredSeq === entry.seq);
    bob.write({ id: 4, read: { conversationId: first.conversationId, seq: entry.seq } });
    assert.equal((await bob.answer(4)).receipt.unreadCount ?? 0, 0);
    await alice.take("the read receipt", (f) => f.receipt?.userId === "bob" && f.receipt.readSeq === entry.seq);

    alice.write({ id: 5, send: { ...send, resend: true } });
    const again = (await alice.answer(5)).sendAck;
    assert.deepEqual([again.status, again.messageId, again.seq, again.duplicate], ["ACK_OK", first.messageId, first.seq, true]);
    alice.write({ id: 6, send: { ...send, content: { text: "other" } } });
    assert.equal((await alice.answer(6)).sendAck.error.reason, "id_reused");

    bob.write({ id: 7, history: { conversationId: first.conversationId, limit: 1, backward: true } });
    const page = (await bob.answer(7)).historyResult.page;
    assert.deepEqual(page.entries.map((e) => e.messageId), [first.messageId]);
    assert.equal(page.completeTo, first.seq);
  });

  test(`a group over ${sub}`, async (t) => {
    const alice = await login(sub, process.env.ALICE, "ga-" + sub);
    const bob = await login(sub, process.env.BOB, "gb-" + sub);
    t.after(() => { alice.ws.close(); bob.ws.close(); });
    const res = await fetch(`http://${base}/imd.v1.ConversationService/Create`, {
      method: "POST",
      headers: { "content-type": "application/json", authorization: `Bearer ${process.env.ALICE}` },
      body: JSON.stringify({ requestId: randomUUID(), name: "team", userIds: ["bob"] }),
    });
    const made = await res.json();
    assert.equal(res.status, 200, JSON.stringify(made));
    const added = await bob.take("the own ADDED", (f) => f.deliver?.conversationId === made.conversationId);
    assert.deepEqual(added.deliver.entries[0].memberChange.userIds.toSorted(), ["alice", "bob"]);
    bob.write(...[10, 11, 12].map((id) => ({ id, send: { conversationId: made.conversationId, clientMessageId: randomUUID(), content: { text: `m${id}` } } })));
    const seqs = [];
    for (const id of [10, 11, 12]) seqs.push(Number((await bob.answer(id)).sendAck.seq));
    assert.deepEqual(seqs, [2, 3, 4]);
    const texts = [];
    while (texts.length < 3) {
      const f = await alice.take("delivers", (f) => f.deliver?.conversationId === made.conversationId);
      texts.push(...f.deliver.entries.filter((e) => e.content).map((e) => e.content.text));
    }
    assert.deepEqual(texts, ["m10", "m11", "m12"]);
  });

  test(`errors over ${sub}`, async (t) => {
    const d = await login(sub, process.env.ALICE, "e-" + sub);
    t.after(() => d.ws.close());
    d.write({ id: 20 });
    assert.equal((await d.answer(20)).error.reason, "unknown_kind");
    d.write({ id: 21, history: { conversationId: "g_1", limit: -1 } });
    assert.equal((await d.answer(21)).error.reason, "bad_request");
    d.write({ id: 22, send: { conversationId: "g_none", clientMessageId: randomUUID(), content: { text: "x" } } });
    const ack = (await d.answer(22)).sendAck;
    assert.deepEqual([ack.status, ack.error.reason], ["ACK_FAIL", "not_member"]);
    d.write({ id: 1, hello: { version: 1, token: process.env.ALICE } });
    const bye = (await d.take("bye", (f) => f.bye)).bye;
    assert.equal(bye.reason, "bad_frame");
    assert.equal((await d.closed).code, 4500);
  });
}

test("an offer of only unknown subprotocols is refused with both names", async () => {
  const ws = new WebSocket(`ws://${base}/v1/ws`, ["imd.v9.xml"]);
  const [status, body] = await new Promise((done, bad) => {
    ws.on("unexpected-response", (req, res) => {
      let text = "";
      res.on("data", (c) => (text += c)).on("end", () => {
        req.destroy(); // else the kept connection keeps the process alive
        done([res.statusCode, text]);
      });
    });
    ws.on("open", () => bad(new Error("accepted")));
  });
  assert.equal(status, 400);
  assert.match(body, /imd\.v1\.proto/);
  assert.match(body, /imd\.v1\.json/);
});
