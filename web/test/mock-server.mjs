// A small server that speaks enough of the protocol for the page: everything is
// in memory, nothing is checked. For work on the page only.
//   node test/mock-server.mjs [port] [dist]
import { createHash, randomUUID } from "node:crypto";
import { readFile } from "node:fs/promises";
import { createServer } from "node:http";
import { extname, join, normalize } from "node:path";
import { WebSocketServer } from "ws";

const port = Number(process.argv[2] ?? 8420);
const dist = process.argv[3] ?? new URL("../dist", import.meta.url).pathname;
const conversations = new Map(); // id -> {id, kind, name, peers, members: Map(user -> {role, delivered, read, start}), log: []}
const sessions = new Set();
const blocks = new Set();
let refuse = "";
let ids = 301234567890120000n;
const epoch = "e-mock";
const types = { ".html": "text/html; charset=utf-8", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml" };
const csp =
  "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; base-uri 'none'; frame-ancestors 'none'";

const b64 = (o) => Buffer.from(JSON.stringify(o)).toString("base64url");
const tokenOf = (user) => `${b64({ alg: "none" })}.${b64({ sub: user, sid: `l-${user}` })}.x`;
const userOf = (token) => {
  try {
    return JSON.parse(Buffer.from(token.split(".")[1], "base64url")).sub;
  } catch {
    return undefined;
  }
};
const directId = (a, b) => `d_${createHash("sha256").update([a, b].sort().join("\n")).digest("hex").slice(0, 26)}`;
const head = (c) => c.log.at(-1)?.seq ?? 0;
const wire = (e) => JSON.parse(JSON.stringify(e, (k, v) => (v !== undefined && ["seq", "prevSeq", "serverTimeMs", "start"].includes(k) ? String(v) : v)));

function direct(a, b) {
  const id = directId(a, b);
  if (!conversations.has(id)) {
    const members = new Map([a, b].map((u) => [u, { role: "ROLE_MEMBER", delivered: 0, read: 0, start: 0 }]));
    conversations.set(id, { id, kind: "CONVERSATION_KIND_DIRECT", name: "", members, log: [] });
  }
  return conversations.get(id);
}

function append(c, entry, except) {
  const e = { seq: head(c) + 1, prevSeq: head(c), messageId: String(ids++), serverTimeMs: Date.now(), ...entry };
  c.log.push(e);
  for (const s of sessions) {
    if (s === except || !s.user) continue;
    const m = c.members.get(s.user);
    if (m && e.seq > m.start) s.send({ deliver: { conversationId: c.id, entries: [wire(e)] } });
  }
  for (const u of e.memberChange && e.memberChange.action !== "MEMBER_ACTION_ADDED" && e.memberChange.action !== "MEMBER_ACTION_ROLE" ? e.memberChange.userIds : []) {
    c.members.delete(u);
  }
  return e;
}

const visible = (c, user) => c.log.filter((e) => e.seq > (c.members.get(user)?.start ?? 0));
const unread = (c, user) => visible(c, user).filter((e) => e.countable && e.sender !== user && e.seq > c.members.get(user).read).length;

function page(c, user, after, before, limit, backward) {
  const top = before ? before - 1 : head(c);
  const all = visible(c, user).filter((e) => e.seq > after && e.seq <= top);
  const part = backward ? all.slice(-limit) : all.slice(0, limit);
  const end = part.length === all.length;
  const from = backward && !end ? part[0].seq : after + 1;
  const to = !backward && !end ? part.at(-1).seq : top;
  return { entries: part.map(wire), completeFrom: String(from), completeTo: String(to), end };
}

function stateOf(c, user, have, limit) {
  const m = c.members.get(user);
  const peer = [...c.members.keys()].find((u) => u !== user);
  const last = visible(c, user).findLast((e) => e.kind === "ENTRY_KIND_MESSAGE");
  const isDirect = c.kind === "CONVERSATION_KIND_DIRECT";
  return {
    conversationId: c.id,
    kind: c.kind,
    name: c.name,
    peerId: isDirect ? peer : "",
    role: m.role,
    start: String(m.start),
    headSeq: String(head(c)),
    readSeq: String(m.read),
    unreadCount: unread(c, user),
    lastMessage: last && wire(last),
    memberCount: c.members.size,
    receipts: isDirect ? [receipt(c, peer)] : [],
    page: limit ? (have === undefined ? page(c, user, m.start, 0, limit, true) : page(c, user, have, 0, limit, false)) : undefined,
  };
}

function receipt(c, user, self = false) {
  const m = c.members.get(user);
  const r = { conversationId: c.id, userId: user, deliveredSeq: String(m.delivered), readSeq: String(m.read) };
  return self ? { ...r, unreadCount: unread(c, user) } : r;
}

function tellReceipt(c, user) {
  for (const s of sessions) if (s.user && s.user !== user && c.members.has(s.user)) s.send({ receipt: receipt(c, user) });
}

function handle(s, frame) {
  const { id } = frame;
  if (frame.hello) {
    const user = userOf(frame.hello.token);
    if (!user || frame.hello.token.endsWith(".AAAA")) {
      s.send({ id, bye: { closeCode: 4501, reason: "bad_token", message: "signature" } });
      return s.socket.close(4501);
    }
    s.user = user;
    const now = String(Date.now());
    const expire = String(Date.now() + 3_600_000);
    return s.send({ id, welcome: { version: 1, sessionId: randomUUID(), userId: user, deviceId: frame.hello.deviceId, dataEpoch: epoch, serverTimeMs: now, tokenExpireMs: expire, pingIntervalMs: 25000, pongTimeoutMs: 10000 } });
  }
  if (frame.sync) {
    const cursors = new Map((frame.sync.cursors ?? []).map((c) => [c.conversationId, Number(c.have ?? 0)]));
    const mine = [...conversations.values()].filter((c) => c.members.has(s.user) && c.log.length > 0);
    const gone = [...cursors.keys()].filter((k) => conversations.has(k) && !conversations.get(k).members.has(s.user));
    const states = mine.map((c) => stateOf(c, s.user, cursors.get(c.id), frame.sync.pageLimit ?? 0));
    for (const k of gone) states.push({ conversationId: k, kind: "CONVERSATION_KIND_GROUP", name: conversations.get(k).name, headSeq: String(cursors.get(k)) });
    return s.send({ id, syncResult: { conversations: states, syncToken: randomUUID(), dataEpoch: epoch, full: !frame.sync.syncToken } });
  }
  if (frame.send) return send(s, id, frame.send);
  if (frame.history) {
    const h = frame.history;
    const c = conversations.get(h.conversationId);
    return s.send({ id, historyResult: { conversationId: h.conversationId, page: page(c, s.user, Number(h.afterSeq ?? 0), Number(h.beforeSeq ?? 0), h.limit || 100, h.backward) } });
  }
  if (frame.read) {
    const c = conversations.get(frame.read.conversationId);
    const m = c.members.get(s.user);
    if (!m) return s.send({ id, error: { code: "permission_denied", reason: "not_member" } });
    m.read = Math.max(m.read, Number(frame.read.seq));
    m.delivered = Math.max(m.delivered, m.read);
    s.send({ id, receipt: receipt(c, s.user, true) });
    for (const o of sessions) if (o !== s && o.user === s.user) o.send({ receipt: receipt(c, s.user, true) });
    return tellReceipt(c, s.user);
  }
  for (const r of frame.ack?.ranges ?? []) {
    const c = conversations.get(r.conversationId);
    const m = c?.members.get(s.user);
    if (!m || Number(r.afterSeq ?? 0) > m.delivered) continue;
    m.delivered = Math.max(m.delivered, Number(r.seq));
    tellReceipt(c, s.user);
  }
}

function store(user, send, except) {
  const c = send.toUser ? direct(user, send.toUser) : conversations.get(send.conversationId);
  if (refuse) return { error: { code: "unavailable", reason: refuse, retryable: true, retryAfterMs: 800 }, status: "ACK_RETRY" };
  if (!c?.members.has(user)) return { status: "ACK_FAIL", error: { code: "permission_denied", reason: "not_member" } };
  const peer = [...c.members.keys()].find((u) => u !== user);
  if (c.kind === "CONVERSATION_KIND_DIRECT" && blocks.has(`${peer}>${user}`)) return { status: "ACK_FAIL", error: { code: "permission_denied", reason: "forbidden" } };
  let e = c.log.find((x) => x.sender === user && x.clientMessageId === send.clientMessageId);
  const duplicate = !!e;
  e ??= append(c, { kind: "ENTRY_KIND_MESSAGE", sender: user, clientMessageId: send.clientMessageId, content: send.content, countable: true }, except);
  return { status: "ACK_OK", conversationId: c.id, messageId: e.messageId, seq: String(e.seq), prevSeq: String(e.prevSeq), serverTimeMs: String(e.serverTimeMs), duplicate };
}

function send(s, id, send) {
  s.send({ id, sendAck: { clientMessageId: send.clientMessageId, ...store(s.user, send, s) } });
}

const changeOf = (action, userIds, role, start) => ({ kind: "ENTRY_KIND_MEMBER_CHANGE", memberChange: { action: `MEMBER_ACTION_${action}`, userIds, role, start } });
const api = {
  Create(user, b) {
    const c = { id: `g_${randomUUID().slice(0, 8)}`, kind: "CONVERSATION_KIND_GROUP", name: b.name, members: new Map(), log: [] };
    conversations.set(c.id, c);
    const all = [user, ...(b.userIds ?? []).filter((u) => u !== user)];
    for (const u of all) c.members.set(u, { role: u === user ? "ROLE_OWNER" : "ROLE_MEMBER", delivered: 0, read: 0, start: 0 });
    return [c, append(c, { sender: user, ...changeOf("ADDED", all, "ROLE_MEMBER", 0) })];
  },
  Rename(user, b, c) {
    c.name = b.name;
    return [c, append(c, { sender: user, kind: "ENTRY_KIND_CONVERSATION_CHANGE", conversationChange: { name: b.name } })];
  },
  AddMembers(user, b, c) {
    const start = head(c);
    for (const u of b.userIds) c.members.set(u, { role: "ROLE_MEMBER", delivered: start, read: start, start });
    return [c, append(c, { sender: user, ...changeOf("ADDED", b.userIds, "ROLE_MEMBER", start) })];
  },
  RemoveMembers: (user, b, c) => [c, append(c, { sender: user, ...changeOf("REMOVED", b.userIds) })],
  SetRole(user, b, c) {
    c.members.get(b.userId).role = b.role;
    return [c, append(c, { sender: user, ...changeOf("ROLE", [b.userId], b.role) })];
  },
  Leave(user, b, c) {
    if (c.members.get(user).role === "ROLE_OWNER") throw { code: "permission_denied", message: "forbidden: the only owner hands over first" };
    return [c, append(c, { sender: user, ...changeOf("LEFT", [user]) })];
  },
};

async function connect(path, user, body) {
  const method = path.split("/").at(-1);
  const c = conversations.get(body.conversationId);
  if (method === "Send") return store(user, body);
  if (method === "Block") return blocks.add(`${user}>${body.userId}`), {};
  if (method === "Unblock") return blocks.delete(`${user}>${body.userId}`), {};
  if (method === "ListMembers") {
    return { members: [...c.members].sort().map(([userId, m]) => ({ userId, role: m.role, deliveredSeq: String(m.delivered), readSeq: String(m.read) })) };
  }
  const [conv, entry] = api[method](user, body, c);
  return { conversationId: conv.id, seq: String(entry.seq) };
}

const server = createServer(async (req, res) => {
  const url = new URL(req.url, "http://x");
  const json = (status, value) => res.writeHead(status, { "Content-Type": "application/json" }).end(JSON.stringify(value));
  if (url.pathname === "/dev/users") return json(200, { users: ["alice", "bob", "carol"].map((u) => ({ userId: u, token: tokenOf(u) })) });
  if (url.pathname === "/mock/drain") {
    for (const s of sessions) s.send({ drain: { reconnectAfterMs: 2500, closeAfterMs: 5000 } });
    return json(200, {});
  }
  if (url.pathname === "/mock/refuse") return (refuse = url.searchParams.get("reason") ?? ""), json(200, {});
  if (url.pathname === "/mock/bye") {
    const code = Number(url.searchParams.get("code"));
    const reason = url.searchParams.get("reason");
    for (const s of sessions) if (s.user === url.searchParams.get("user")) s.send({ bye: { closeCode: code, reason } }), s.socket.close(code);
    return json(200, {});
  }
  if (url.pathname.startsWith("/imd.v1.")) {
    let body = "";
    for await (const chunk of req) body += chunk;
    const user = userOf((req.headers.authorization ?? "").replace("Bearer ", ""));
    try {
      return json(200, await connect(url.pathname, user, JSON.parse(body)));
    } catch (e) {
      return json(403, { code: e.code ?? "internal", message: e.message ?? String(e) });
    }
  }
  const file = normalize(url.pathname === "/" ? "/index.html" : url.pathname);
  try {
    const data = await readFile(join(dist, file));
    res.writeHead(200, { "Content-Type": types[extname(file)] ?? "application/octet-stream", "Content-Security-Policy": csp }).end(data);
  } catch {
    res.writeHead(404).end("not found");
  }
});

const wss = new WebSocketServer({ server, path: "/v1/ws", handleProtocols: (p) => (p.has("imd.v1.json") ? "imd.v1.json" : false) });
wss.on("connection", (socket) => {
  const s = { socket, user: "", send: (f) => socket.readyState === 1 && socket.send(`${JSON.stringify(f)}\n`) };
  sessions.add(s);
  socket.on("message", (data) => {
    for (const line of String(data).split("\n")) if (line.trim()) handle(s, JSON.parse(line));
  });
  socket.on("close", () => sessions.delete(s));
});
server.listen(port, "127.0.0.1", () => console.log(`mock server on http://127.0.0.1:${port}/`));
