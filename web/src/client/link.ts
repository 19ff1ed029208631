// The link to the server: one connection after the other, for as long as it is
// wanted. It gets tokens, waits between attempts, moves when a node drains, and
// keeps the session's token fresh.

import { create } from "@bufbuild/protobuf";
import { RefreshTokenSchema, type ServerFrame, type Welcome } from "../gen/imd/client/v1/client_pb.js";
import { backoff } from "./backoff.js";
import { Connection, type ConnectionOptions, type End } from "./connection.js";
import { SignInRequired } from "./errors.js";
import { Timers } from "./timers.js";

/** Why a token is asked for: to begin, to connect again, because the last one expired, or to go on before it does. */
export type TokenReason = "start" | "reconnect" | "token_expired" | "refresh";

/** idle: not started. stopped: only a person or a new token helps; reason says why. */
export type Phase = "idle" | "joining" | "online" | "waiting" | "stopped";

/** The state of the link. */
export interface LinkState {
  phase: Phase;
  /** Online, but the server has asked to move to another connection. */
  draining: boolean;
  /** Of the last end: a reason of the error table, or empty. */
  reason: string;
  message: string;
  /** Milliseconds since 1970 of the next attempt while waiting; 0 otherwise. */
  retryAt: number;
}

/** What a link tells its owner. */
export interface LinkEvents {
  /** A connection was opened: what is written on it at once follows hello in the same envelope. */
  joining(conn: Connection): void;
  /** This connection is the one to use now; the one before is closed, and what it did not answer is not answered. */
  online(conn: Connection, welcome: Welcome): void;
  /** There is no connection any more, and none is about to take over. */
  offline(): void;
  /** A frame that answers nothing. */
  event(frame: ServerFrame): void;
  state(): void;
}

/** How to connect. */
export interface LinkOptions extends Omit<ConnectionOptions, "token"> {
  token: (reason: TokenReason) => string | Promise<string>;
  random: () => number;
}

/** After so long online, the next wait begins at the shortest again. */
const steadyMs = 10_000;
/**
 * For so long after an attempt was given up, the server may still take its hello: it stood still, or its packets were
 * late. It then ends the session of a later attempt.
 */
const lateHelloMs = 120_000;
/** How many such attempts are remembered. */
const maxGivenUp = 16;
/** The part of a token's life after which it is renewed. */
const refreshAt = 0.8;

/** Keeps a connection. */
export class Link {
  #options: LinkOptions;
  #events: LinkEvents;
  #state: LinkState = { phase: "idle", draining: false, reason: "", message: "", retryAt: 0 };
  #timers = new Timers();
  #conn: Connection | undefined;
  #joining: Connection | undefined;
  /** The server has ended #conn for the one that is joining, whose welcome is on its way. */
  #superseded = false;
  /** When attempts were given up whose hello had neither welcome nor a reason for an answer, oldest first. */
  #givenUp: number[] = [];
  /** Counts the attempts, so that a token that comes late is not used. */
  #life = 0;
  #attempt = 0;
  #token = "";
  /** The server's clock minus ours, in milliseconds. */
  #clockOffset = 0;

  constructor(options: LinkOptions, events: LinkEvents) {
    this.#options = options;
    this.#events = events;
  }

  /** A new object whenever it changes. */
  get state(): LinkState {
    return this.#state;
  }

  /** The connection to use; undefined while there is none. */
  get conn(): Connection | undefined {
    return this.#conn?.online ? this.#conn : undefined;
  }

  /** Connects, unless it does so already. */
  start(): void {
    if (this.#state.phase !== "idle" && this.#state.phase !== "stopped") return;
    this.#attempt = 0;
    void this.#join("start");
  }

  /** Disconnects. */
  stop(): void {
    this.#life++;
    this.#timers.clear();
    this.#giveUp(this.#joining);
    this.#joining?.close();
    this.#conn?.close();
    this.#joining = this.#conn = undefined;
    this.#superseded = false;
    this.#events.offline();
    this.#set({ phase: "idle", draining: false, retryAt: 0 });
  }

  /** Tries at once instead of at the end of a wait. */
  wake(): void {
    if (this.#state.phase === "waiting") void this.#join("reconnect");
  }

  /** Takes the connection for dead. */
  drop(message: string): void {
    this.#joining?.drop(message);
    this.#conn?.drop(message);
  }

  async #join(reason: TokenReason): Promise<void> {
    const life = ++this.#life;
    this.#timers.cancel("join");
    this.#giveUp(this.#joining);
    this.#joining?.close();
    this.#joining = undefined;
    if (!this.#conn) this.#set({ phase: "joining", retryAt: 0 });
    try {
      this.#token = await this.#options.token(reason);
    } catch (error) {
      if (life !== this.#life) return;
      if (error instanceof SignInRequired) this.#stopped("bad_token", error.message);
      else this.#wait(reason, 0, "", String(error));
      return;
    }
    if (life !== this.#life) return;
    const conn = new Connection(
      { ...this.#options, token: this.#token },
      {
        welcome: (welcome) => this.#welcomed(conn, welcome),
        event: (frame) => this.#event(conn, frame),
        ended: (end) => this.#ended(conn, end),
      },
    );
    this.#joining = conn;
    this.#events.joining(conn);
  }

  #welcomed(conn: Connection, welcome: Welcome): void {
    const old = this.#conn;
    this.#conn = conn;
    this.#joining = undefined;
    this.#superseded = false;
    old?.close();
    this.#clockOffset = Number(welcome.serverTimeMs) - Date.now();
    this.#timers.set("steady", steadyMs, () => (this.#attempt = 0));
    this.#planRefresh(Number(welcome.tokenExpireMs));
    this.#set({ phase: "online", draining: false, reason: "", message: "", retryAt: 0 });
    this.#events.online(conn, welcome);
  }

  #event(conn: Connection, frame: ServerFrame): void {
    if (conn !== this.#conn) return;
    if (frame.kind.case === "drain") this.#drain(frame.kind.value.reconnectAfterMs);
    else this.#events.event(frame);
  }

  #drain(reconnectAfterMs: number): void {
    if (this.#joining) return;
    this.#set({ draining: true, reason: "drain" });
    this.#timers.set("join", reconnectAfterMs, () => void this.#join("reconnect"));
  }

  #ended(conn: Connection, end: End): void {
    if (conn === this.#conn) {
      this.#conn = undefined;
      this.#timers.cancel("steady");
      this.#timers.cancel("refresh");
      this.#superseded = this.#joining !== undefined && end.reason === "superseded";
      if (this.#superseded) return;
      this.#events.offline();
      this.#set({ draining: false });
      if (this.#joining && end.reconnect) return this.#set({ phase: "joining", reason: end.reason, message: end.message });
    } else if (conn === this.#joining) {
      this.#joining = undefined;
      if (!end.reason) this.#giveUp(conn);
      if (this.#superseded) {
        this.#superseded = false;
        this.#events.offline();
        this.#set({ draining: false });
      }
    } else {
      return;
    }
    if (!end.reconnect && !this.#excused(end)) return this.#stopped(end.reason, end.message);
    this.#wait(end.reason === "token_expired" ? "token_expired" : "reconnect", end.retryAfterMs, end.reason, end.message);
  }

  /** Remembers an attempt that got no answer, unless the server has ended the connection it was to replace: then its hello was taken. */
  #giveUp(conn: Connection | undefined): void {
    if (conn?.unanswered && !this.#superseded) this.#givenUp = [...this.#givenUp.slice(1 - maxGivenUp), Date.now()];
  }

  /**
   * Whether a hello that was given up may be why the server ended a session. Each excuses one end, so that two programs
   * with one login and device do not push each other out for ever.
   */
  #excused(end: End): boolean {
    if (end.reason !== "superseded") return false;
    const since = Date.now() - lateHelloMs;
    this.#givenUp = this.#givenUp.filter((at) => at >= since);
    return this.#givenUp.shift() !== undefined;
  }

  #wait(why: TokenReason, retryAfterMs: number, reason: string, message: string): void {
    const wait = retryAfterMs || backoff(this.#attempt++, this.#options.random);
    this.#timers.set("join", wait, () => void this.#join(why));
    if (!this.#conn) this.#set({ phase: "waiting", reason, message, retryAt: Date.now() + wait });
  }

  #stopped(reason: string, message: string): void {
    this.stop();
    this.#set({ phase: "stopped", reason, message });
  }

  #planRefresh(expireMs: number): void {
    const life = expireMs - this.#clockOffset - Date.now();
    if (life > 0) this.#timers.set("refresh", life * refreshAt, () => void this.#refresh());
  }

  async #refresh(): Promise<void> {
    const conn = this.#conn;
    let token: string;
    try {
      token = await this.#options.token("refresh");
    } catch {
      return; // The old token holds to its end; then another one is asked for.
    }
    if (!conn?.online || conn !== this.#conn || token === this.#token) return;
    conn.request({ case: "refreshToken", value: create(RefreshTokenSchema, { token }) }, (answer) => {
      if (answer?.kind.case !== "refreshResult") return;
      this.#token = token;
      this.#planRefresh(Number(answer.kind.value.tokenExpireMs));
    });
  }

  #set(state: Partial<LinkState>): void {
    this.#state = { ...this.#state, ...state };
    this.#events.state();
  }
}
