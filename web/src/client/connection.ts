// One WebSocket connection: hello to close. It knows requests and answers,
// heartbeats and deadlines, and nothing of conversations.

import { create } from "@bufbuild/protobuf";
import {
  type ClientFrame,
  ClientFrameSchema,
  HelloSchema,
  PongSchema,
  type ServerFrame,
  type Welcome,
} from "../gen/imd/client/v1/client_pb.js";
import { decodeServer, encodeClient, type Encoding, subprotocols } from "./codec.js";
import { closeReason, reconnects } from "./errors.js";

/** The part of the WebSocket interface that is used; browsers and the package ws have it. */
export interface Socket {
  binaryType: string;
  onopen: ((event: any) => void) | null;
  onmessage: ((event: any) => void) | null;
  onclose: ((event: any) => void) | null;
  onerror: ((event: any) => void) | null;
  send(data: string | Uint8Array<ArrayBuffer>): void;
  close(code?: number): void;
}

/** Opens a socket with one subprotocol. */
export type SocketFactory = (url: string, subprotocol: string) => Socket;

/** Why a connection ended. */
export interface End {
  /** A close code; 1006 if there was none. */
  code: number;
  /** A reason of the error table, or empty. */
  reason: string;
  message: string;
  /** Whether to connect again. */
  reconnect: boolean;
  /** Milliseconds to wait before that; 0 = by the client's own backoff. */
  retryAfterMs: number;
}

/** What a connection tells its owner. After ended nothing more comes. */
export interface ConnectionEvents {
  welcome(welcome: Welcome): void;
  /** Every frame that is neither welcome, ping, bye nor the answer to a request. */
  event(frame: ServerFrame): void;
  ended(end: End): void;
}

/** What a connection begins with. */
export interface ConnectionOptions {
  url: string;
  encoding: Encoding;
  socket: SocketFactory;
  token: string;
  deviceId: string;
  class: string;
  client: string;
  /** Which announcement or withdrawal was told last; undefined = none are wanted. */
  announced?: () => AnnouncementCursor;
}

/** The last announcement or withdrawal that was told, in which history of the server's store. */
export interface AnnouncementCursor {
  seq: number;
  epoch: string;
}

type Kind = ClientFrame["kind"];
type Answer = (frame: ServerFrame | undefined) => void;

/** How long welcome and each answer may take, in milliseconds. */
export const answerTimeoutMs = 10_000;
const defaultPingMs = 25_000;
const defaultPongMs = 10_000;
/** The level of the protocol this client can do. */
const protocolVersion = 1;

/** One connection, from opening the socket to its end. */
export class Connection {
  #socket: Socket;
  #events: ConnectionEvents | undefined;
  #options: ConnectionOptions;
  #open = false;
  #welcome = false;
  #queue: ClientFrame[] = [];
  #flushing = false;
  #lastId = 0;
  #waiting = new Map<number, { since: number; answer: Answer }>();
  #heardAt = Date.now();
  #silenceMs = answerTimeoutMs;
  #pongMs = defaultPongMs;
  #timer: ReturnType<typeof setTimeout> | undefined;

  /** Opens the socket and writes hello; frames written at once go into the same envelope. */
  constructor(options: ConnectionOptions, events: ConnectionEvents) {
    this.#options = options;
    this.#events = events;
    const hello = create(HelloSchema, {
      version: protocolVersion,
      token: options.token,
      deviceId: options.deviceId,
      class: options.class,
      client: options.client,
    });
    const announced = options.announced?.();
    if (announced) {
      hello.announcementSeq = BigInt(announced.seq);
      hello.announcementEpoch = announced.epoch;
    }
    this.request({ case: "hello", value: hello }, () => {});
    this.#socket = options.socket(options.url, subprotocols[options.encoding]);
    this.#socket.binaryType = "arraybuffer";
    this.#socket.onopen = () => {
      this.#open = true;
      this.#flush();
    };
    this.#socket.onmessage = (event: { data: string | ArrayBuffer }) => this.#receive(event.data);
    this.#socket.onclose = (event: { code: number; reason: string }) => this.#closed(event.code, event.reason);
    this.#socket.onerror = () => {};
    this.#watch();
  }

  /** Whether welcome came and the end did not. */
  get online(): boolean {
    return this.#welcome && this.#events !== undefined;
  }

  /** Whether hello was written and welcome did not come. */
  get unanswered(): boolean {
    return this.#open && !this.#welcome;
  }

  /** The id of the next request. */
  nextId(): number {
    return (this.#lastId = this.#lastId >= 0xffff_ffff ? 1 : this.#lastId + 1);
  }

  /** Writes a frame that wants no answer. What is written in one turn leaves together. */
  write(kind: Kind): void {
    this.#enqueue(create(ClientFrameSchema, { id: 0, kind }));
  }

  /**
   * Writes a request. answer is called once with the frame that answers it, or
   * with undefined when the connection ends before. id: from nextId.
   */
  request(kind: Kind, answer: Answer, id = this.nextId()): void {
    if (!this.#events) {
      answer(undefined);
      return;
    }
    this.#waiting.set(id, { since: Date.now(), answer });
    this.#enqueue(create(ClientFrameSchema, { id, kind }));
    if (this.#waiting.size === 1) this.#watch();
  }

  /** Ends the connection without a word to the owner. Unanswered requests are answered with undefined. */
  close(): void {
    this.#finish();
    this.#socket.close(1000);
  }

  /** Ends the connection as if the network had broken it. */
  drop(message: string): void {
    this.#end({ code: 1006, reason: "", message, reconnect: true, retryAfterMs: 0 });
  }

  #enqueue(frame: ClientFrame): void {
    if (!this.#events) return;
    this.#queue.push(frame);
    if (!this.#open || this.#flushing) return;
    this.#flushing = true;
    queueMicrotask(() => {
      this.#flushing = false;
      this.#flush();
    });
  }

  #flush(): void {
    if (!this.#events || !this.#open) return;
    const frames = this.#queue;
    this.#queue = [];
    for (const envelope of encodeClient(this.#options.encoding, frames)) this.#socket.send(envelope);
  }

  #receive(data: string | ArrayBuffer): void {
    if (!this.#events) return;
    this.#heardAt = Date.now();
    let frames: ServerFrame[];
    try {
      frames = decodeServer(this.#options.encoding, data);
    } catch (error) {
      this.drop(String(error));
      return;
    }
    for (const frame of frames) this.#take(frame);
    this.#watch();
  }

  #take(frame: ServerFrame): void {
    if (!this.#events) return;
    switch (frame.kind.case) {
      case "welcome":
        return this.#welcomed(frame, frame.kind.value);
      case "ping":
        this.#silenceMs = (frame.kind.value.intervalMs || defaultPingMs) + this.#pongMs;
        return this.write({ case: "pong", value: create(PongSchema) });
      case "bye": {
        const { closeCode: code, reason, message, retryAfterMs } = frame.kind.value;
        return this.#end({ code, reason, message, reconnect: reconnects(code), retryAfterMs });
      }
      case undefined:
        return;
      default:
        if (!this.#answered(frame)) this.#events.event(frame);
    }
  }

  #welcomed(frame: ServerFrame, welcome: Welcome): void {
    if (this.#welcome) return;
    this.#welcome = true;
    this.#pongMs = welcome.pongTimeoutMs || defaultPongMs;
    this.#silenceMs = (welcome.pingIntervalMs || defaultPingMs) + this.#pongMs;
    this.#answered(frame);
    this.#events?.welcome(welcome);
  }

  #answered(frame: ServerFrame): boolean {
    const waiting = frame.id === 0 ? undefined : this.#waiting.get(frame.id);
    if (!waiting) return false;
    this.#waiting.delete(frame.id);
    waiting.answer(frame);
    return true;
  }

  /** Waits for the first of: silence for too long, the oldest request unanswered for too long. */
  #watch(): void {
    clearTimeout(this.#timer);
    if (!this.#events) return;
    let at = this.#heardAt + this.#silenceMs;
    for (const { since } of this.#waiting.values()) at = Math.min(at, since + answerTimeoutMs);
    this.#timer = setTimeout(() => this.#check(), Math.max(at - Date.now(), 0));
  }

  #check(): void {
    const now = Date.now();
    if (now - this.#heardAt >= this.#silenceMs) return this.drop("the server is silent");
    for (const { since } of this.#waiting.values()) {
      if (now - since >= answerTimeoutMs) return this.drop("the server does not answer");
    }
    this.#watch();
  }

  #closed(code: number, text: string): void {
    const reason = closeReason(code);
    this.#end({ code, reason, message: text, reconnect: reconnects(code), retryAfterMs: 0 });
  }

  #end(end: End): void {
    const events = this.#finish();
    if (!events) return;
    this.#socket.close(1000);
    events.ended(end);
  }

  #finish(): ConnectionEvents | undefined {
    const events = this.#events;
    this.#events = undefined;
    clearTimeout(this.#timer);
    const waiting = [...this.#waiting.values()];
    this.#waiting.clear();
    this.#queue = [];
    for (const { answer } of waiting) answer(undefined);
    return events;
  }
}
