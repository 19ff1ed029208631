// What the person should know about the connection.

import { useEffect, useState } from "preact/hooks";
import { plural, stopText } from "./format.js";
import * as icons from "./icons.js";
import type { Session } from "./session.js";
import { announcements, closeAnnouncement, leave, tick } from "./state.js";

/** Nothing while all is well; otherwise what is wrong, and what can be done. */
export function Banner({ session }: { session: Session }) {
  void tick.value;
  const { client } = session;
  const { phase, draining, reason, retryAt } = client.state;
  const waiting = client.waiting;
  const outbox = waiting > 0 ? ` ${plural(waiting, "message")} will be sent then.` : "";
  if (phase === "stopped") {
    return (
      <Line kind="stop" text={stopText(reason)}>
        {reason === "superseded" || reason === "login_refused" ? (
          <button type="button" onClick={() => client.start()}>
            Use it here
          </button>
        ) : (
          <button type="button" onClick={leave}>
            Sign in again
          </button>
        )}
      </Line>
    );
  }
  if (phase === "waiting") {
    return (
      <Line kind="wait" text="No connection." more={<><Countdown until={retryAt} />{outbox}</>}>
        <button type="button" onClick={() => client.wake()}>
          Try now
        </button>
      </Line>
    );
  }
  if (phase === "joining") return <Line kind="join" text={`Connecting…${outbox}`} />;
  if (draining) return <Line kind="join" text="The server is moving you to another connection. Go on as usual." />;
  return null;
}

/** What the operator tells everybody, until the person closes it or its time is over. */
export function Announcements() {
  const [now, setNow] = useState(Date.now());
  const list = announcements.value;
  useEffect(() => {
    if (list.length === 0) return;
    const next = Math.min(...list.map((a) => a.expiresMs));
    const timer = setTimeout(() => setNow(Date.now()), Math.min(Math.max(next - Date.now(), 0) + 50, 60_000));
    return () => clearTimeout(timer);
  }, [list, now]);
  return (
    <>
      {list
        .filter((a) => a.expiresMs > Date.now())
        .map((a) => (
          <div key={a.seq} class="banner banner-news">
            <icons.Alert />
            <p>
              <span role="status">{a.text}</span>
            </p>
            <button type="button" onClick={() => closeAnnouncement(a.seq)}>
              Close
            </button>
          </div>
        ))}
    </>
  );
}

interface LineProps {
  kind: "stop" | "wait" | "join";
  text: string;
  more?: preact.ComponentChildren;
  children?: preact.ComponentChildren;
}

function Line({ kind, text, more, children }: LineProps) {
  return (
    <div class={`banner banner-${kind}`}>
      {kind === "join" ? <span class="spinner" aria-hidden="true" /> : <icons.Alert />}
      <p>
        <span role="status">{text}</span> {more}
      </p>
      {children}
    </div>
  );
}

function Countdown({ until }: { until: number }) {
  const [now, setNow] = useState(Date.now());
  useEffect(() => {
    setNow(Date.now());
    const timer = setInterval(() => setNow(Date.now()), 250);
    return () => clearInterval(timer);
  }, [until]);
  const seconds = Math.ceil((until - now) / 1_000);
  return <span>{seconds > 0 ? `Trying again in ${seconds} s.` : "Trying again…"}</span>;
}
