// One conversation: its bar, its messages and the place to write.

import { useEffect, useState } from "preact/hooks";
import { type Conversation, ConversationKind, Role } from "../client/index.js";
import { Avatar } from "./avatar.js";
import { Composer } from "./composer.js";
import { plural, presenceText, typingText } from "./format.js";
import * as icons from "./icons.js";
import { useReceipts } from "./info.js";
import type { Session } from "./session.js";
import { close, infoOpen, tick } from "./state.js";
import { TimelineView } from "./timeline.js";

/** The chosen conversation. */
export function Chat({ session, conversation }: { session: Session; conversation: Conversation }) {
  void tick.value;
  const [jump, setJump] = useState(0);
  useReceipts(session, conversation);
  useMembersPresence(session, conversation);
  const group = conversation.kind === ConversationKind.GROUP;
  const peer = group ? undefined : session.client.presence(conversation.peerId);
  const typing = typingText(conversation);
  const below = typing || (group ? plural(conversation.memberCount, "member") : presenceText(peer, Date.now()));
  return (
    <>
      <header class="bar">
        <button type="button" class="round back" aria-label="Back to the list" onClick={close}>
          <icons.Back />
        </button>
        <button type="button" class="bar-head" aria-expanded={infoOpen.value} onClick={() => (infoOpen.value = !infoOpen.value)}>
          <Avatar name={conversation.title} group={group} online={peer?.online === true} size="s" />
          <span class="bar-names">
            <bdi class="bar-title">{conversation.title}</bdi>
            {below && <span class={typing ? "typing" : "quiet"}>{below}</span>}
          </span>
        </button>
        <button
          type="button"
          class="round"
          aria-label="About this conversation"
          title="About this conversation"
          aria-expanded={infoOpen.value}
          onClick={() => (infoOpen.value = !infoOpen.value)}
        >
          <icons.Info />
        </button>
      </header>
      <TimelineView session={session} conversation={conversation} jump={jump} />
      {conversation.writable ? (
        <Composer session={session} conversation={conversation} sent={() => setJump((n) => n + 1)} />
      ) : (
        <p class="closed">
          {conversation.role === Role.UNSPECIFIED
            ? "You are not in this group any more. You can still read what you saw before."
            : "This conversation is closed. Nobody can write here any more."}
        </p>
      )}
    </>
  );
}

/** The largest group whose members are watched. */
const watchedMembers = 200;

/** Watches the members of a group while it is open. */
function useMembersPresence(session: Session, conversation: Conversation): void {
  const { id } = conversation;
  const group = conversation.kind === ConversationKind.GROUP && conversation.role !== Role.UNSPECIFIED;
  const wanted = group && conversation.memberCount <= watchedMembers ? id : "";
  useEffect(() => (wanted === "" ? undefined : session.client.watchPresence({ conversations: [wanted] })), [session, wanted]);
  // "5 minutes ago" has to go on.
  const [, setMinute] = useState(0);
  useEffect(() => {
    const timer = setInterval(() => setMinute((n) => n + 1), 60_000);
    return () => clearInterval(timer);
  }, []);
}

/** What stands in the place of a conversation while none is chosen. */
export function NoChat() {
  return (
    <div class="nochat">
      <icons.Logo size={72} />
      <h2>Choose a conversation</h2>
      <p class="quiet">Or start one with the + button.</p>
    </div>
  );
}
