// The messages of a conversation, and where the person is in them.

import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { type Conversation, ConversationKind, type Item } from "../client/index.js";
import { changeText, dayName, dayOf, plural } from "./format.js";
import * as icons from "./icons.js";
import { Local, Message } from "./message.js";
import type { Session } from "./session.js";
import { tick, watching } from "./state.js";

/** So many lines are drawn at first, and more when scrolling up. */
const windowStep = 60;
/** At the bottom, more than this are cut back. */
const windowMax = 300;
const nearPx = 48;
const olderPx = 400;
const joinMs = 5 * 60_000;

interface Props {
  session: Session;
  conversation: Conversation;
  /** Rises when the person has written: go to the bottom. */
  jump: number;
}

/** Keeps its place while older messages are added above, and stays at the bottom while new ones come. */
export function TimelineView({ session, conversation, jump }: Props) {
  void tick.value;
  const box = useRef<HTMLDivElement>(null);
  const place = useRef<Place>({ atBottom: true, key: "", offset: 0, size: "" });
  const [atBottom, setAtBottom] = useState(true);
  const firstKey = useRef("");
  const [newFrom] = useState(() => (conversation.timeline.unread > 0 ? conversation.timeline.readSeq : -1));
  const seenTo = useRef(conversation.timeline.have);
  const [, redraw] = useState(0);

  const items = conversation.items;
  const start = windowStart(items, firstKey.current);
  firstKey.current = keyAt(items, start);
  const have = conversation.timeline.have;
  if (atBottom && watching.value) seenTo.current = have;
  const fresh = countFresh(items, seenTo.current);

  const widen = () => {
    const now = conversation.items;
    firstKey.current = keyAt(now, Math.max(0, windowStart(now, firstKey.current) - windowStep));
    redraw((n) => n + 1);
  };
  const older = () => {
    if (start > 0) widen();
    else if (conversation.timeline.older && !conversation.loading && session.client.state.phase === "online") {
      void session.client.loadOlder(conversation).then(widen);
    }
  };
  const toBottom = () => {
    const element = box.current;
    if (!element) return;
    if (items.length - start > windowMax) firstKey.current = keyAt(items, items.length - windowStep);
    place.current.atBottom = true;
    setAtBottom(true);
    element.scrollTop = element.scrollHeight;
  };
  const scrolled = () => {
    const element = box.current;
    if (!element) return; // an event of a conversation that is shown no more
    if (sizeOf(element) !== place.current.size) return restorePlace(element, place.current);
    place.current = placeOf(element);
    setAtBottom(place.current.atBottom);
    if (element.scrollTop < olderPx) older();
    loadGapsInView(session, conversation, element);
  };

  useLayoutEffect(() => {
    const element = box.current!;
    restorePlace(element, place.current);
    place.current = placeOf(element, place.current.atBottom);
    if (element.scrollTop < olderPx && (start > 0 || element.scrollHeight <= element.clientHeight + olderPx)) older();
    if (!place.current.atBottom) loadGapsInView(session, conversation, element);
  });
  useLayoutEffect(() => toBottom(), [jump]);
  useEffect(() => {
    const element = box.current!;
    const observer = new ResizeObserver(() => restorePlace(element, place.current));
    observer.observe(element);
    if (element.firstElementChild) observer.observe(element.firstElementChild);
    return () => observer.disconnect();
  }, []);
  useEffect(() => {
    if (atBottom && watching.value && have > conversation.timeline.readSeq) session.client.read(conversation, have);
  });

  return (
    <div class="timeline">
      <div class="scroll" ref={box} tabIndex={0} role="region" aria-label={`Messages with ${conversation.title}`} onScroll={scrolled}>
        <div class="scroll-inner">
          <Top conversation={conversation} start={start} />
          <ol class="messages">
            <Lines session={session} conversation={conversation} items={items} start={start} newFrom={newFrom} />
          </ol>
        </div>
      </div>
      {!atBottom && (
        <button type="button" class={fresh > 0 ? "pill pill-new" : "pill"} onClick={toBottom} aria-label={fresh > 0 ? undefined : "To the newest message"}>
          {fresh > 0 && plural(fresh, "new message")}
          <icons.Down />
        </button>
      )}
    </div>
  );
}

function Top({ conversation, start }: { conversation: Conversation; start: number }) {
  if (conversation.loading) return <p class="top" role="status"><span class="spinner" aria-hidden="true" /> Loading older messages</p>;
  if (start > 0 || conversation.timeline.older) return <p class="top" />;
  if (conversation.items.length > 0) return <p class="top quiet">This is where the conversation begins for you.</p>;
  if (conversation.id !== "" && !conversation.timeline.known) return <p class="top" role="status"><span class="spinner" aria-hidden="true" /></p>;
  return (
    <div class="empty">
      <h2>Nothing here yet</h2>
      <p class="quiet">
        {conversation.kind === ConversationKind.DIRECT ? `Write the first message to ${conversation.peerId}.` : "Write the first message to the group."}
      </p>
    </div>
  );
}

interface LinesProps {
  session: Session;
  conversation: Conversation;
  items: readonly Item[];
  start: number;
  /** Above this seq a line says that what follows is new; -1 = no line. */
  newFrom: number;
}

function Lines({ session, conversation, items, start, newFrom }: LinesProps) {
  const lines: preact.VNode[] = [];
  const now = Date.now();
  const group = conversation.kind !== ConversationKind.DIRECT;
  let day = 0;
  let previous: { sender: string; at: number } | undefined;
  let marked = newFrom < 0;
  for (const item of items.slice(start)) {
    const at = atOf(item);
    if (at > 0 && dayOf(at) !== day) {
      day = dayOf(at);
      previous = undefined;
      lines.push(<li key={`d${day}`} class="line day"><span>{dayName(at, now)}</span></li>);
    }
    if (!marked && item.kind === "message" && !item.mine && item.entry.seq > newFrom) {
      marked = true;
      previous = undefined;
      lines.push(<li key="new" class="line new"><span>New messages</span></li>);
    }
    const sender = item.kind === "message" ? item.entry.sender : item.kind === "local" ? session.userId : "";
    const joined = previous !== undefined && sender !== "" && previous.sender === sender && at - previous.at < joinMs;
    lines.push(<Line key={item.key} session={session} conversation={conversation} item={item} joined={joined} group={group} />);
    previous = sender === "" ? undefined : { sender, at };
  }
  return <>{lines}</>;
}

interface LineProps {
  session: Session;
  conversation: Conversation;
  item: Item;
  joined: boolean;
  group: boolean;
}

function Line({ session, conversation, item, joined, group }: LineProps) {
  const { client } = session;
  switch (item.kind) {
    case "message": {
      const { entry, mine, key } = item;
      const mark = mine ? conversation.mark(entry.seq) : "sent";
      const title = mine ? markTitle(conversation, entry.seq, group) : "";
      return <Message id={key} entry={entry} mine={mine} joined={joined} named={group && !mine} mark={mark} markTitle={title} />;
    }
    case "local": {
      const id = item.local.clientMessageId;
      return (
        <Local
          local={item.local}
          joined={joined}
          stuck={client.state.phase === "waiting" || client.state.phase === "stopped"}
          retry={() => client.retry(conversation, id)}
          withdraw={() => client.withdraw(conversation, id)}
        />
      );
    }
    case "change":
      return <li class="line change" data-key={item.key}><bdi>{changeText(item.entry, session.userId)}</bdi></li>;
    case "gap": {
      const loading = conversation.loadingGaps.has(item.gap.from);
      return (
        <li class="line gap" data-key={item.key} data-from={item.gap.from} data-to={item.gap.to}>
          <button type="button" class="link" disabled={loading} onClick={() => void client.loadGap(conversation, item.gap)}>
            {loading ? "Loading messages…" : "Messages between are not loaded. Load them"}
          </button>
        </li>
      );
    }
  }
}

function markTitle(conversation: Conversation, seq: number, group: boolean): string {
  const { delivered, read, of } = conversation.reach(seq);
  if (!group || of === 0) return { sent: "Sent", delivered: "Delivered", read: "Read" }[conversation.mark(seq)];
  if (read > 0) return read >= of ? "Read by all" : `Read by ${read} of ${of}`;
  return delivered > 0 ? (delivered >= of ? "Delivered to all" : `Delivered to ${delivered} of ${of}`) : "Sent";
}

function atOf(item: Item): number {
  return item.kind === "local" ? item.local.at : item.kind === "gap" ? 0 : item.entry.at;
}

function keyAt(items: readonly Item[], at: number): string {
  return items[at]?.key ?? "";
}

/** Where drawing begins: at a known line, otherwise some lines above the end. */
function windowStart(items: readonly Item[], key: string): number {
  const at = key === "" ? -1 : items.findIndex((item) => item.key === key);
  return at >= 0 ? at : Math.max(0, items.length - windowStep);
}

/** Messages of others above a seq. */
function countFresh(items: readonly Item[], seq: number): number {
  let n = 0;
  for (let i = items.length - 1; i >= 0; i--) {
    const item = items[i]!;
    if (item.kind === "local") continue;
    if (item.kind === "gap" || item.entry.seq <= seq) break;
    if (item.kind === "message" && !item.mine) n++;
  }
  return n;
}

interface Place {
  atBottom: boolean;
  /** The first line in view, and its distance from the top of the view. */
  key: string;
  offset: number;
  /** The size that this was read at; a scroll event at another size is not the person's. */
  size: string;
}

function sizeOf(element: HTMLElement): string {
  return `${element.clientWidth} ${element.clientHeight} ${element.scrollHeight}`;
}

function placeOf(element: HTMLElement, atBottom = element.scrollHeight - element.scrollTop - element.clientHeight < nearPx): Place {
  const top = element.getBoundingClientRect().top;
  const size = sizeOf(element);
  for (const line of element.querySelectorAll<HTMLElement>("[data-key]:not(.gap)")) {
    const rect = line.getBoundingClientRect();
    if (rect.bottom > top) return { atBottom, key: line.dataset.key!, offset: rect.top - top, size };
  }
  return { atBottom, key: "", offset: 0, size };
}

function restorePlace(element: HTMLElement, place: Place): void {
  place.size = sizeOf(element);
  if (place.atBottom) {
    element.scrollTop = element.scrollHeight;
    return;
  }
  const line = place.key && element.querySelector<HTMLElement>(`[data-key="${CSS.escape(place.key)}"]`);
  if (!line) return;
  const moved = line.getBoundingClientRect().top - element.getBoundingClientRect().top - place.offset;
  if (Math.abs(moved) >= 1) element.scrollTop += moved;
}

function loadGapsInView(session: Session, conversation: Conversation, element: HTMLElement): void {
  if (session.client.state.phase !== "online") return;
  const view = element.getBoundingClientRect();
  for (const gap of element.querySelectorAll<HTMLElement>("[data-from]")) {
    const rect = gap.getBoundingClientRect();
    if (rect.bottom < view.top - nearPx || rect.top > view.bottom + nearPx) continue;
    void session.client.loadGap(conversation, { from: Number(gap.dataset.from), to: Number(gap.dataset.to) });
  }
}
