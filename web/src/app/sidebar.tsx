// The list of conversations.

import { useEffect, useState } from "preact/hooks";
import { type Conversation, ConversationKind, watchedUsers } from "../client/index.js";
import { Avatar } from "./avatar.js";
import { countOf, plural, previewOf, shortTime, typingText } from "./format.js";
import * as icons from "./icons.js";
import type { Session } from "./session.js";
import { dialogOpen, leave, muted, open, selected, tick } from "./state.js";

const searchFrom = 8;

/** All conversations, the newest first, and the way to new ones. */
export function Sidebar({ session }: { session: Session }) {
  void tick.value;
  const [search, setSearch] = useState("");
  const all = session.client.conversations.filter((c) => c.id !== "" || c.items.length > 0 || c === selected.value);
  usePeers(session, all);
  const wanted = search.trim().toLocaleLowerCase();
  const shown = wanted ? all.filter((c) => c.title.toLocaleLowerCase().includes(wanted)) : all;
  return (
    <aside class="sidebar" aria-label="Conversations">
      <header class="bar">
        <Avatar name={session.userId} size="s" />
        <h1 class="bar-title">{session.userId}</h1>
        <button type="button" class="round" aria-label="Sign out" title="Sign out" onClick={leave}>
          <icons.Exit />
        </button>
        <button
          type="button"
          class="round accent"
          aria-label="New conversation"
          title="New conversation"
          onClick={() => (dialogOpen.value = true)}
        >
          <icons.Plus />
        </button>
      </header>
      {all.length >= searchFrom && (
        <label class="search">
          <icons.Search />
          <input
            type="search"
            placeholder="Search"
            aria-label="Search conversations"
            value={search}
            onInput={(event) => setSearch(event.currentTarget.value)}
          />
        </label>
      )}
      <List session={session} conversations={shown} searching={wanted !== ""} />
    </aside>
  );
}

function List({ session, conversations, searching }: { session: Session; conversations: Conversation[]; searching: boolean }) {
  if (conversations.length > 0) {
    return (
      <ul class="list">
        {conversations.map((c) => (
          <Row key={c.key} session={session} conversation={c} current={c === selected.value} />
        ))}
      </ul>
    );
  }
  if (searching) return <p class="empty quiet">Nothing found.</p>;
  if (!session.client.state.synced) return <Skeleton />;
  return (
    <div class="empty">
      <icons.Logo size={48} />
      <h2>No conversations yet</h2>
      <p class="quiet">Write to somebody by their user id, or make a group.</p>
      <button type="button" class="primary" onClick={() => (dialogOpen.value = true)}>
        Start a conversation
      </button>
    </div>
  );
}

/** Watches the other ones of the newest direct conversations. */
function usePeers(session: Session, conversations: Conversation[]): void {
  const peers = conversations
    .filter((c) => c.kind === ConversationKind.DIRECT && c.id !== "")
    .slice(0, watchedUsers)
    .map((c) => c.peerId)
    .sort();
  const key = peers.join(" ");
  useEffect(() => (key === "" ? undefined : session.client.watchPresence({ users: key.split(" ") })), [session, key]);
}

function Row({ session, conversation: c, current }: { session: Session; conversation: Conversation; current: boolean }) {
  void tick.value; // A component that reads one signal, as muted does, is drawn again for signals only.
  const { who, text, state } = previewOf(c);
  const online = c.kind === ConversationKind.DIRECT && session.client.presence(c.peerId)?.online === true;
  const typing = typingText(c);
  const unread = c.timeline.unread;
  return (
    <li>
      <button type="button" class="row" aria-current={current ? "true" : undefined} onClick={() => open(c)}>
        <Avatar name={c.title} group={c.kind === ConversationKind.GROUP} online={online} />
        <span class="row-main">
          <span class="row-line">
            <bdi class="row-title">{c.title}</bdi>
            {online && <span class="spoken">online</span>}
            {muted(c) && (
              <span class="row-muted" title="Muted">
                <icons.Muted />
                <span class="spoken">muted</span>
              </span>
            )}
            <time class="row-time">{shortTime(c.activityAt, Date.now())}</time>
          </span>
          <span class="row-line">
            {typing ? (
              <span class="row-preview typing">{typing}</span>
            ) : (
              <span class="row-preview">
                {state === "failed" && <span class="bad">Not sent: </span>}
                {state === "pending" && <icons.Clock />}
                {who && state !== "failed" && <span>{who}: </span>}
                <bdi>{text.slice(0, 160)}</bdi>
              </span>
            )}
            {unread > 0 && (
              <span class="badge" aria-label={unread > 999 ? "more than 999 unread" : plural(unread, "unread", "unread")}>
                {countOf(unread)}
              </span>
            )}
          </span>
        </span>
      </button>
    </li>
  );
}

function Skeleton() {
  return (
    <ul class="list" aria-label="Loading" aria-busy="true">
      {[0, 1, 2, 3].map((i) => (
        <li key={i} class="row skeleton">
          <span class="avatar avatar-m" />
          <span class="row-main">
            <span class="bone" />
            <span class="bone bone-long" />
          </span>
        </li>
      ))}
    </ul>
  );
}
