// One conversation: its bar, its messages and the place to write.

import { useState } from "preact/hooks";
import { type Conversation, ConversationKind, Role } from "../client/index.js";
import { Avatar } from "./avatar.js";
import { Composer } from "./composer.js";
import { plural } from "./format.js";
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
  const group = conversation.kind === ConversationKind.GROUP;
  return (
    <>
      <header class="bar">
        <button type="button" class="round back" aria-label="Back to the list" onClick={close}>
          <icons.Back />
        </button>
        <button type="button" class="bar-head" aria-expanded={infoOpen.value} onClick={() => (infoOpen.value = !infoOpen.value)}>
          <Avatar name={conversation.title} group={group} size="s" />
          <span class="bar-names">
            <bdi class="bar-title">{conversation.title}</bdi>
            {group && <span class="quiet">{plural(conversation.memberCount, "member")}</span>}
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
