// Everything a program needs to talk to an imd server: a client with
// conversations, timelines and an outbox, and the calls of the HTTP API.

export { Api, type ApiOptions, type Change, type Member, type Scheduled } from "./api.js";
export { type Announcement, type AnnouncementStore, Client, type ClientEvents, type ClientOptions, type ClientState, uuid7 } from "./client.js";
export { type Encoding, subprotocols } from "./codec.js";
export type { AnnouncementCursor, Socket, SocketFactory } from "./connection.js";
export { Conversation, type Mark, plainName, receiptMembers } from "./conversation.js";
export { ImdError, reasonInfo, SignInRequired } from "./errors.js";
export type { Phase, TokenReason } from "./link.js";
export {
  type Content,
  contentBytes,
  ConversationKind,
  type Entry,
  EntryKind,
  MemberAction,
  type Receipt,
  Role,
} from "./model.js";
export { type Presence, type Watch, watchedUsers } from "./presence.js";
export { memoryStore, type OutboxStore, webAnnouncements, webStore } from "./store.js";
export { type Item, type LocalMessage, Timeline } from "./timeline.js";
