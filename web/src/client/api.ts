// Groups and blocks: rare changes, made over HTTP as Connect JSON. Their
// effect comes over the socket as entries of the log.

import { fromBinary } from "@bufbuild/protobuf";
import { ErrorSchema } from "../gen/imd/client/v1/client_pb.js";
import { ImdError } from "./errors.js";
import { Role } from "./model.js";
import { uuid7 } from "./client.js";

/** One member of a conversation. */
export interface Member {
  userId: string;
  role: Role;
  deliveredSeq: number;
  readSeq: number;
}

/** A message to send later, and what has become of it. */
export interface Scheduled {
  scheduledId: string;
  conversationId: string;
  text: string;
  sendAtMs: number;
  state: "waiting" | "sending" | "sent" | "dropped" | "cancelled" | "unspecified";
  /** With dropped: why. */
  reason: string;
  /** With sent. */
  seq: number;
  /** That the message has when it is sent. */
  clientMessageId: string;
}

/** The entry that a change wrote. */
export interface Change {
  conversationId: string;
  seq: number;
}

/** How to reach the HTTP API and as whom. */
export interface ApiOptions {
  /** The base of all calls, such as https://chat.example/ or https://example/chat/. */
  url: string;
  token: () => string | Promise<string>;
  /** Milliseconds a call may take; default 10,000. */
  timeoutMs?: number;
  fetch?: typeof fetch;
}

const memberPage = 500;
const roleNames: Record<Role, string> = {
  [Role.UNSPECIFIED]: "ROLE_UNSPECIFIED",
  [Role.MEMBER]: "ROLE_MEMBER",
  [Role.ADMIN]: "ROLE_ADMIN",
  [Role.OWNER]: "ROLE_OWNER",
};

type Json = Record<string, unknown>;

/** The calls a user may make. Every method throws ImdError. */
export class Api {
  #options: ApiOptions;

  constructor(options: ApiOptions) {
    this.#options = options;
  }

  /** Makes a group; the caller becomes its owner. openHistory: newcomers see everything. */
  create(name: string, userIds: string[], openHistory: boolean): Promise<Change> {
    return this.#change("Create", { name, userIds, openHistory });
  }

  rename(conversationId: string, name: string): Promise<Change> {
    return this.#change("Rename", { conversationId, name });
  }

  /** Adds up to 500 users; those already in are left as they are. */
  addMembers(conversationId: string, userIds: string[]): Promise<Change> {
    return this.#change("AddMembers", { conversationId, userIds });
  }

  removeMembers(conversationId: string, userIds: string[]): Promise<Change> {
    return this.#change("RemoveMembers", { conversationId, userIds });
  }

  setRole(conversationId: string, userId: string, role: Role): Promise<Change> {
    return this.#change("SetRole", { conversationId, userId, role: roleNames[role] });
  }

  /** The only owner hands over first. */
  leave(conversationId: string): Promise<Change> {
    return this.#change("Leave", { conversationId });
  }

  /** The members by user id, at most limit of them. */
  async listMembers(conversationId: string, limit = 1_000): Promise<Member[]> {
    const members: Member[] = [];
    let pageToken = "";
    do {
      const page = await this.#call("ConversationService/ListMembers", {
        conversationId,
        limit: Math.min(memberPage, limit - members.length),
        pageToken,
      });
      for (const m of (page.members ?? []) as Json[]) members.push(memberOf(m));
      pageToken = String(page.nextPageToken ?? "");
    } while (pageToken !== "" && members.length < limit);
    return members;
  }

  /**
   * Has the server send a text at a later time. The message then comes like any
   * other, with the client message id of the answer.
   */
  async schedule(to: { conversationId: string } | { toUser: string }, text: string, sendAtMs: number, requestId = uuid7()): Promise<Scheduled> {
    const answer = await this.#call("MessageService/Schedule", { ...to, requestId, content: { text }, sendAtMs });
    return scheduledOf((answer.scheduled ?? {}) as Json);
  }

  /** The scheduled messages by the time at which they are due; ended: also those that wait no more. */
  async listScheduled(ended = false): Promise<Scheduled[]> {
    const all: Scheduled[] = [];
    let pageToken = "";
    do {
      const page = await this.#call("MessageService/ListScheduled", { ended, limit: 200, pageToken });
      for (const m of (page.scheduled ?? []) as Json[]) all.push(scheduledOf(m));
      pageToken = String(page.nextPageToken ?? "");
    } while (pageToken !== "");
    return all;
  }

  /** Cancels a scheduled message. The answer is final: if its state is cancelled, it is never sent. */
  async cancelScheduled(scheduledId: string): Promise<Scheduled> {
    const answer = await this.#call("MessageService/CancelScheduled", { scheduledId });
    return scheduledOf((answer.scheduled ?? {}) as Json);
  }

  /**
   * Keeps notices of a conversation away while no device is connected, and leaves
   * it out of their badge. until: milliseconds since 1970; 0 = until unmute.
   */
  async mute(conversationId: string, until = 0): Promise<void> {
    await this.#call("ConversationService/Mute", { conversationId, untilMs: String(until) });
  }

  async unmute(conversationId: string): Promise<void> {
    await this.#call("ConversationService/Unmute", { conversationId });
  }

  /** Until when conversations are muted, by id; 0 = until unmute. */
  async listMutes(): Promise<Map<string, number>> {
    const mutes = new Map<string, number>();
    let pageToken = "";
    do {
      const page = await this.#call("ConversationService/ListMutes", { limit: memberPage, pageToken });
      for (const m of (page.conversations ?? []) as Json[]) mutes.set(String(m.conversationId ?? ""), Number(m.untilMs ?? 0));
      pageToken = String(page.nextPageToken ?? "");
    } while (pageToken !== "");
    return mutes;
  }

  /** Direct messages from this user are refused from now on. */
  async block(userId: string): Promise<void> {
    await this.#call("UserService/Block", { userId });
  }

  async unblock(userId: string): Promise<void> {
    await this.#call("UserService/Unblock", { userId });
  }

  async #change(method: string, body: Json): Promise<Change> {
    const answer = await this.#call(`ConversationService/${method}`, { requestId: uuid7(), ...body });
    return { conversationId: String(answer.conversationId ?? ""), seq: Number(answer.seq ?? 0) };
  }

  async #call(method: string, body: Json): Promise<Json> {
    const call = this.#options.fetch ?? fetch;
    let response: Response;
    try {
      response = await call(new URL(`imd.v1.${method}`, this.#options.url), {
        method: "POST",
        headers: {
          "Content-Type": "application/json",
          "Connect-Protocol-Version": "1",
          Authorization: `Bearer ${await this.#options.token()}`,
        },
        body: JSON.stringify(body),
        signal: AbortSignal.timeout(this.#options.timeoutMs ?? 10_000),
      });
    } catch (cause) {
      throw new ImdError("unavailable", "the server cannot be reached", true, 0, cause instanceof Error ? cause.name : "");
    }
    const text = await response.text().catch(() => "");
    const answer = parse(text);
    if (!response.ok) throw errorOf(answer, response.status);
    return answer ?? {};
  }
}

function memberOf(m: Json): Member {
  const name = String(m.role ?? "");
  const role = (Object.entries(roleNames).find(([, n]) => n === name)?.[0] ?? Role.UNSPECIFIED) as string | Role;
  return {
    userId: String(m.userId ?? ""),
    role: Number(role),
    deliveredSeq: Number(m.deliveredSeq ?? 0),
    readSeq: Number(m.readSeq ?? 0),
  };
}

function scheduledOf(m: Json): Scheduled {
  const content = (m.content ?? {}) as Json;
  return {
    scheduledId: String(m.scheduledId ?? ""),
    conversationId: String(m.conversationId ?? ""),
    text: String(content.text ?? ""),
    sendAtMs: Number(m.sendAtMs ?? 0),
    state: String(m.state ?? "unspecified").replace("SCHEDULED_STATE_", "").toLowerCase() as Scheduled["state"],
    reason: String(m.reason ?? ""),
    seq: Number(m.seq ?? 0),
    clientMessageId: String(m.clientMessageId ?? ""),
  };
}

function parse(text: string): Json | undefined {
  try {
    const value: unknown = JSON.parse(text);
    return typeof value === "object" && value !== null ? (value as Json) : undefined;
  } catch {
    return undefined;
  }
}

/** A Connect error, with the frame error it carries as detail if there is one. */
function errorOf(answer: Json | undefined, status: number): ImdError {
  for (const detail of (answer?.details ?? []) as Json[]) {
    if (detail.type !== "imd.client.v1.Error") continue;
    try {
      const bytes = Uint8Array.from(atob(String(detail.value)), (c) => c.charCodeAt(0));
      return ImdError.of(fromBinary(ErrorSchema, bytes));
    } catch {
      break; // Not what it says it is; the words beside it are enough.
    }
  }
  const code = String(answer?.code ?? "");
  return new ImdError(code || "internal", String(answer?.message ?? `HTTP status ${status}`), status >= 500, 0, code);
}
