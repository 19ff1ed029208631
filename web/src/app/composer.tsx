// Where messages are written.

import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { type Conversation, contentBytes } from "../client/index.js";
import * as icons from "./icons.js";
import type { Session } from "./session.js";
import { toastError } from "./state.js";

/** Below this many bytes of room the counter shows. */
const counterFrom = 2_048;
const drafts = new Map<string, string>();

interface Props {
  session: Session;
  conversation: Conversation;
  /** Called after a message was written. */
  sent: () => void;
}

/** Enter sends, Shift and Enter begins a new line. What is not sent stays with its conversation. */
export function Composer({ session, conversation, sent }: Props) {
  const area = useRef<HTMLTextAreaElement>(null);
  const [text, setText] = useState(drafts.get(conversation.key) ?? "");
  const room = session.client.contentLimit - contentBytes({ text });

  useLayoutEffect(() => grow(area.current), [text]);
  useEffect(() => {
    if (window.matchMedia("(hover: hover)").matches) area.current?.focus();
  }, []);
  useEffect(() => {
    drafts.set(conversation.key, text);
  }, [text]);

  const send = () => {
    if (text.trim() === "" || room < 0) return;
    try {
      session.client.send(conversation, { text });
    } catch (error) {
      return toastError(error);
    }
    setText("");
    sent();
    area.current?.focus();
  };
  const key = (event: KeyboardEvent) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    send();
  };
  return (
    <form
      class="composer"
      onSubmit={(event) => {
        event.preventDefault();
        send();
      }}
    >
      <div class="composer-field">
        <textarea
          ref={area}
          rows={1}
          dir="auto"
          value={text}
          placeholder="Write a message"
          aria-label={`Message to ${conversation.title}`}
          aria-describedby={room < counterFrom ? "room" : undefined}
          onInput={(event) => {
            setText(event.currentTarget.value);
            if (event.currentTarget.value.trim() !== "") session.client.typing(conversation);
          }}
          onKeyDown={key}
        />
        {room < counterFrom && (
          <span id="room" class={room < 0 ? "room bad" : "room"}>
            {room < 0 ? `${-room} bytes too long` : `${room} left`}
          </span>
        )}
      </div>
      <button type="submit" class="round send" aria-label="Send" title="Send" disabled={text.trim() === "" || room < 0}>
        <icons.Send />
      </button>
    </form>
  );
}

/** As high as its text, up to the limit of the style sheet. */
function grow(area: HTMLTextAreaElement | null): void {
  if (!area) return;
  area.style.height = "auto";
  area.style.height = `${area.scrollHeight}px`;
}
