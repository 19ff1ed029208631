// The protocol's values as plain objects. A seq stays below 2^53 and is a
// number here; a message id is only compared, and is a string.

import { create } from "@bufbuild/protobuf";
import {
  type Content as ContentFrame,
  ContentSchema,
  ConversationKind,
  type ConversationState,
  EntryKind,
  type Entry as EntryFrame,
  MemberAction,
  type Page as PageFrame,
  type Receipt as ReceiptFrame,
  Role,
} from "../gen/imd/client/v1/client_pb.js";

export { ConversationKind, EntryKind, MemberAction, Role };

/** What a message says. */
export interface Content {
  /** Empty or absent = "text". */
  type?: string;
  text?: string;
  data?: Uint8Array;
  attributes?: Record<string, string>;
}

/** Who came, went or changed role, in an entry of kind MEMBER_CHANGE. */
export interface MemberChange {
  action: MemberAction;
  userIds: string[];
  role: Role;
  /** ADDED: the first have of those added. */
  start: number;
}

/** What changed is present. */
export interface ConversationChange {
  name?: string;
  closed?: boolean;
}

/** One line of a conversation's log. */
export interface Entry {
  seq: number;
  /** seq of the entry before it in the log; 0 = none. */
  prevSeq: number;
  kind: EntryKind;
  messageId: string;
  clientMessageId: string;
  /** A user; empty = the system. */
  sender: string;
  /** Milliseconds since 1970 of the commit; for display, never for order. */
  at: number;
  /** A message without content is a recalled one. */
  content?: Content;
  targetSeq: number;
  countable: boolean;
  /** seq of the newest edit or recall already applied to this copy; 0 = none. */
  changedSeq: number;
  memberChange?: MemberChange;
  conversationChange?: ConversationChange;
}

/** A stretch of the log: all that may be seen of completeFrom..completeTo is in entries; empty if completeTo is the lower. */
export interface Page {
  entries: Entry[];
  completeFrom: number;
  completeTo: number;
  /** The interval asked for is exhausted. */
  end: boolean;
}

/** How far a member has received and read. */
export interface Receipt {
  userId: string;
  deliveredSeq: number;
  readSeq: number;
  /** Only on the own receipt. */
  unreadCount?: number;
}

/** A conversation as the server describes it to one of its users. */
export interface State {
  conversationId: string;
  kind: ConversationKind;
  name: string;
  /** direct: the other user. */
  peerId: string;
  /** Unspecified = not a member any more. */
  role: Role;
  /** The first have. */
  start: number;
  /** The newest entry the user may see; 0 = none. */
  headSeq: number;
  readSeq: number;
  unreadCount: number;
  lastMessage?: Entry;
  receipts: Receipt[];
  page?: Page;
  closed: boolean;
  memberCount: number;
}

/** A content as it goes into a frame. */
export function contentFrame(content: Content): ContentFrame {
  return create(ContentSchema, {
    type: content.type ?? "",
    value:
      content.text !== undefined
        ? { case: "text", value: content.text }
        : content.data !== undefined
          ? { case: "data", value: content.data }
          : { case: undefined },
    attributes: content.attributes ?? {},
  });
}

/** A content as it came in a frame. */
export function contentOf(frame: ContentFrame): Content {
  const content: Content = {};
  if (frame.type !== "") content.type = frame.type;
  if (frame.value.case === "text") content.text = frame.value.value;
  if (frame.value.case === "data") content.data = frame.value.value;
  if (Object.keys(frame.attributes).length > 0) content.attributes = { ...frame.attributes };
  return content;
}

/** An entry as it came in a frame. */
export function entryOf(frame: EntryFrame): Entry {
  const entry: Entry = {
    seq: Number(frame.seq),
    prevSeq: Number(frame.prevSeq),
    kind: frame.kind,
    messageId: frame.messageId === "0" ? "" : frame.messageId,
    clientMessageId: frame.clientMessageId,
    sender: frame.sender,
    at: Number(frame.serverTimeMs),
    targetSeq: Number(frame.targetSeq),
    countable: frame.countable,
    changedSeq: Number(frame.changedSeq),
  };
  if (frame.content) entry.content = contentOf(frame.content);
  if (frame.memberChange) {
    const { action, userIds, role, start } = frame.memberChange;
    entry.memberChange = { action, userIds: [...userIds], role, start: Number(start) };
  }
  if (frame.conversationChange) {
    const { name, closed } = frame.conversationChange;
    entry.conversationChange = { ...(name !== undefined && { name }), ...(closed !== undefined && { closed }) };
  }
  return entry;
}

/** A page as it came in a frame. */
export function pageOf(frame: PageFrame): Page {
  return {
    entries: frame.entries.map(entryOf),
    completeFrom: Number(frame.completeFrom),
    completeTo: Number(frame.completeTo),
    end: frame.end,
  };
}

/** A receipt as it came in a frame. */
export function receiptOf(frame: ReceiptFrame): Receipt {
  return {
    userId: frame.userId,
    deliveredSeq: Number(frame.deliveredSeq),
    readSeq: Number(frame.readSeq),
    ...(frame.unreadCount !== undefined && { unreadCount: frame.unreadCount }),
  };
}

/** A conversation's state as it came in a frame. */
export function stateOf(frame: ConversationState): State {
  return {
    conversationId: frame.conversationId,
    kind: frame.kind,
    name: frame.name,
    peerId: frame.peerId,
    role: frame.role,
    start: Number(frame.start),
    headSeq: Number(frame.headSeq),
    readSeq: Number(frame.readSeq),
    unreadCount: frame.unreadCount,
    ...(frame.lastMessage && { lastMessage: entryOf(frame.lastMessage) }),
    receipts: frame.receipts.map(receiptOf),
    ...(frame.page && { page: pageOf(frame.page) }),
    closed: frame.closed,
    memberCount: frame.memberCount,
  };
}

const contentLimit = { type: 64, attributes: 16 };
const utf8 = new TextEncoder();

/** The size of a content as the server counts it, in bytes. */
export function contentBytes(content: Content): number {
  const length = (s: string | undefined) => (s === undefined ? 0 : utf8.encode(s).length);
  let size = length(content.type) + length(content.text) + (content.data?.length ?? 0);
  for (const [key, value] of Object.entries(content.attributes ?? {})) size += length(key) + length(value);
  return size;
}

/** Why a server with this limit in bytes would refuse a content for good: "too_large" or "bad_request"; empty if it would not. */
export function checkContent(content: Content, limit: number): string {
  if (contentBytes(content) > limit) return "too_large";
  if ((content.type ?? "").length > contentLimit.type) return "bad_request";
  if (Object.keys(content.attributes ?? {}).length > contentLimit.attributes) return "bad_request";
  return content.text?.includes("\u0000") ? "bad_request" : "";
}
