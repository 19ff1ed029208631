// The page: sign-in, or the list, the conversation and what is about it.

import { useEffect } from "preact/hooks";
import { Banner } from "./banner.js";
import { Chat, NoChat } from "./chat.js";
import { NewDialog } from "./dialog.js";
import { countOf } from "./format.js";
import { InfoPanel } from "./info.js";
import type { Session } from "./session.js";
import { Sidebar } from "./sidebar.js";
import { SignIn } from "./signin.js";
import { close, dialogOpen, followHistory, infoOpen, muted, open, selected, session, tick, watching } from "./state.js";
import { Toasts } from "./toasts.js";

/** Everything there is. */
export function App() {
  const current = session.value;
  return (
    <>
      {current ? <Main key={current.userId} session={current} /> : <SignIn />}
      <Toasts />
    </>
  );
}

function Main({ session: current }: { session: Session }) {
  useTitle(current);
  useSurroundings(current);
  const conversation = selected.value;
  const classes = ["app", conversation ? "has-chat" : "", conversation && infoOpen.value ? "has-info" : ""];
  return (
    <div class={classes.filter(Boolean).join(" ")}>
      <Banner session={current} />
      <div class="panes">
        <Sidebar session={current} />
        <main class="chat">{conversation ? <Chat key={idOf(conversation)} session={current} conversation={conversation} /> : <NoChat />}</main>
        {conversation && infoOpen.value && <InfoPanel key={idOf(conversation)} session={current} conversation={conversation} />}
      </div>
      {dialogOpen.value && <NewDialog session={current} />}
    </div>
  );
}

const ids = new WeakMap<object, number>();
let lastId = 0;

/** A key that stays when a conversation gets its id from the server. */
function idOf(conversation: object): number {
  let id = ids.get(conversation);
  if (id === undefined) ids.set(conversation, (id = ++lastId));
  return id;
}

function useTitle(current: Session): void {
  void tick.value;
  const unread = current.client.conversations.reduce((sum, c) => sum + (muted(c) ? 0 : c.timeline.unread), 0);
  useEffect(() => {
    document.title = unread > 0 ? `(${countOf(unread)}) imd` : "imd";
  }, [unread]);
}

/** Follows the network, the visibility of the page, the keyboard and the back button. */
function useSurroundings(current: Session): void {
  useEffect(() => {
    const stop = new AbortController();
    const { signal } = stop;
    const look = () => {
      watching.value = !document.hidden && document.hasFocus();
      if (!document.hidden) current.client.wake();
    };
    window.addEventListener("online", () => current.client.wake(), { signal });
    window.addEventListener("offline", () => current.client.networkChanged(), { signal });
    window.addEventListener("focus", look, { signal });
    window.addEventListener("blur", look, { signal });
    document.addEventListener("visibilitychange", look, { signal });
    window.addEventListener("popstate", followHistory, { signal });
    window.addEventListener("keydown", (event) => onKey(current, event), { signal });
    look();
    return () => stop.abort();
  }, [current]);
}

/** Escape goes back one step; Alt with the arrows goes through the list. */
function onKey(current: Session, event: KeyboardEvent): void {
  if (event.key === "Escape" && !dialogOpen.value) {
    if (infoOpen.value) infoOpen.value = false;
    else close();
    return;
  }
  if (!event.altKey || (event.key !== "ArrowDown" && event.key !== "ArrowUp")) return;
  const list = current.client.conversations.filter((c) => c.id !== "" || c.items.length > 0);
  if (list.length === 0) return;
  event.preventDefault();
  const at = selected.value ? list.indexOf(selected.value) : -1;
  const next = event.key === "ArrowDown" ? at + 1 : Math.max(0, at - 1);
  open(list[Math.min(next, list.length - 1)]!);
}
