// One message of a timeline.

import { Component, type FunctionComponent, h } from "preact";
import { useState } from "preact/hooks";
import type { Entry, LocalMessage, Mark } from "../client/index.js";
import { Avatar } from "./avatar.js";
import { contentText, fullTime, reasonText, timeOf } from "./format.js";
import * as icons from "./icons.js";

/** Longer texts are folded until somebody asks for them. */
const foldChars = 900;
const foldLines = 16;
const linkPattern = /https?:\/\/[^\s<>"'`]+[^\s<>"'`.,;:!?)\]}]/giu;
const emojiOnly = /^(?:\p{Extended_Pictographic}|\p{Emoji_Component}|\s){1,24}$/u;

export interface MessageProps {
  id: string;
  entry: Entry;
  mine: boolean;
  /** It stands below another message of the same person, and close to it in time. */
  joined: boolean;
  /** Show who wrote it. */
  named: boolean;
  mark: Mark;
  markTitle: string;
}

/** A stored message. */
export const Message = lazily(function Message({ id, entry, mine, joined, named, mark, markTitle }: MessageProps) {
  return (
    <li class={bubbleClass(mine, joined)} data-key={id} data-seq={entry.seq}>
      {named && <span class="message-face">{!joined && <Avatar name={entry.sender || "imd"} size="s" />}</span>}
      <div class="bubble">
        {named && !joined && <bdi class="message-sender">{entry.sender || "System"}</bdi>}
        <div class="bubble-body">
          {entry.content ? <Text text={contentText(entry)} /> : <em class="recalled">This message was recalled</em>}
          <span class="meta">
            <time title={fullTime(entry.at)}>{timeOf(entry.at)}</time>
            {mine && (
              <span class={`mark mark-${mark}`} title={markTitle} role="img" aria-label={markTitle}>
                {mark === "sent" ? <icons.Check /> : <icons.Checks />}
              </span>
            )}
          </span>
        </div>
      </div>
    </li>
  );
});

export interface LocalProps {
  local: LocalMessage;
  joined: boolean;
  /** Whether it can be given up although the server has not refused it. */
  stuck: boolean;
  retry: () => void;
  withdraw: () => void;
}

/** A message of one's own that is not known to be stored. */
export function Local({ local, joined, stuck, retry, withdraw }: LocalProps) {
  const failed = local.state === "failed";
  return (
    <li class={`${bubbleClass(true, joined)} message-${local.state}`} data-key={local.clientMessageId}>
      <div class="bubble">
        <div class="bubble-body">
          <Text text={local.content.text ?? ""} />
          <span class="meta">
            <time title={fullTime(local.at)}>{timeOf(local.at)}</time>
            <span class="mark" title={failed ? "Not sent" : "Waiting"} role="img" aria-label={failed ? "Not sent" : "Waiting"}>
              {failed ? <icons.Alert /> : <icons.Clock />}
            </span>
          </span>
        </div>
      </div>
      {(failed || stuck) && (
        <div class="rescue">
          <span class={failed ? "bad" : "quiet"}>{failed ? `Not sent. ${reasonText(local.reason)}` : "Not sent yet."}</span>
          {failed && (
            <button type="button" class="link" onClick={retry}>
              Retry
            </button>
          )}
          <button type="button" class="link" onClick={withdraw}>
            {failed ? "Delete" : "Withdraw"}
          </button>
        </div>
      )}
    </li>
  );
}

function bubbleClass(mine: boolean, joined: boolean): string {
  return `message ${mine ? "mine" : "theirs"}${joined ? " joined" : ""}`;
}

/** The text of a message as text, never as HTML; addresses of the web become links. */
function Text({ text }: { text: string }) {
  const [open, setOpen] = useState(false);
  const folded = !open && isLong(text);
  const shown = folded ? foldedText(text) : text;
  return (
    <>
      <div class={emojiOnly.test(text) ? "text text-emoji" : "text"} dir="auto">
        {linked(shown)}
        {folded && "…"}
      </div>
      {folded && (
        <button type="button" class="link more" onClick={() => setOpen(true)}>
          Show all
        </button>
      )}
    </>
  );
}

function isLong(text: string): boolean {
  return text.length > foldChars * 1.3 || text.split("\n", foldLines * 1.3 + 1).length > foldLines * 1.3;
}

function foldedText(text: string): string {
  const lines = text.split("\n", foldLines).join("\n").slice(0, foldChars);
  // Not between the halves of a surrogate pair.
  return /[\ud800-\udbff]$/.test(lines) ? lines.slice(0, -1) : lines;
}

function linked(text: string) {
  const parts: preact.ComponentChildren[] = [];
  let at = 0;
  for (const match of text.matchAll(linkPattern)) {
    parts.push(text.slice(at, match.index));
    parts.push(
      <a href={match[0]} target="_blank" rel="noopener noreferrer">
        {match[0]}
      </a>,
    );
    at = match.index + match[0].length;
  }
  parts.push(text.slice(at));
  return parts;
}

/** Draws a component again only when one of its properties is another. */
function lazily<P extends object>(inner: FunctionComponent<P>): new () => Component<P> {
  return class extends Component<P> {
    override shouldComponentUpdate(next: P): boolean {
      return (Object.keys(next) as (keyof P)[]).some((name) => next[name] !== this.props[name]);
    }

    override render() {
      return h(inner, this.props);
    }
  };
}
