// The dialog for a new conversation.

import { useEffect, useRef, useState } from "preact/hooks";
import * as icons from "./icons.js";
import type { Session } from "./session.js";
import { dialogOpen, open, toastError } from "./state.js";

const idPattern = /^[A-Za-z0-9._\-@+]{1,64}$/;
const nameLimitBytes = 128;

/** User ids in a line, apart by commas or spaces. */
export function idsOf(text: string): string[] {
  return [...new Set(text.split(/[\s,;]+/).filter(Boolean))];
}

/** Why these are not user ids; empty if they are. */
export function idProblem(ids: readonly string[]): string {
  const bad = ids.find((id) => !idPattern.test(id));
  return bad === undefined ? "" : `“${bad.slice(0, 70)}” is not a user id. Use letters, digits and . _ - @ +`;
}

/** Starts a direct conversation or makes a group. */
export function NewDialog({ session }: { session: Session }) {
  const dialog = useRef<HTMLDialogElement>(null);
  const [group, setGroup] = useState(false);
  useEffect(() => {
    if (dialogOpen.value) dialog.current?.showModal();
  }, []);
  const done = () => (dialogOpen.value = false);
  return (
    <dialog
      ref={dialog}
      class="dialog"
      aria-labelledby="dialog-title"
      onClose={done}
      onClick={(event) => event.target === event.currentTarget && dialog.current?.close()}
    >
      <div class="dialog-body">
        <header class="dialog-head">
          <h2 id="dialog-title">New conversation</h2>
          <button type="button" class="round" aria-label="Close" onClick={() => dialog.current?.close()}>
            <icons.Close />
          </button>
        </header>
        <div class="tabs" role="group" aria-label="Kind of conversation">
          <button type="button" aria-pressed={!group} onClick={() => setGroup(false)}>
            One person
          </button>
          <button type="button" aria-pressed={group} onClick={() => setGroup(true)}>
            Group
          </button>
        </div>
        {group ? <GroupForm session={session} done={done} /> : <DirectForm session={session} done={done} />}
      </div>
    </dialog>
  );
}

interface FormProps {
  session: Session;
  done: () => void;
}

function DirectForm({ session, done }: FormProps) {
  const [user, setUser] = useState("");
  const [problem, setProblem] = useState("");
  const submit = (event: Event) => {
    event.preventDefault();
    const id = user.trim();
    if (id === "") return setProblem("Write a user id.");
    if (idProblem([id])) return setProblem(idProblem([id]));
    if (id === session.userId) return setProblem("That is you. Pick somebody else.");
    open(session.client.direct(id));
    done();
  };
  return (
    <form onSubmit={submit}>
      <label for="peer">User id</label>
      <input
        id="peer"
        autofocus
        autocomplete="off"
        autocapitalize="none"
        spellcheck={false}
        placeholder="bob"
        value={user}
        aria-describedby="peer-help"
        aria-invalid={problem !== ""}
        onInput={(event) => {
          setUser(event.currentTarget.value);
          setProblem("");
        }}
      />
      <p id="peer-help" class={problem ? "problem" : "quiet"} role={problem ? "alert" : undefined}>
        {problem || "They see the conversation as soon as you write."}
      </p>
      <button type="submit" class="primary wide">
        Open
      </button>
    </form>
  );
}

function GroupForm({ session, done }: FormProps) {
  const [name, setName] = useState("");
  const [members, setMembers] = useState("");
  const [openHistory, setOpenHistory] = useState(false);
  const [busy, setBusy] = useState(false);
  const [problem, setProblem] = useState("");

  const submit = async (event: Event) => {
    event.preventDefault();
    const ids = idsOf(members);
    const bytes = new TextEncoder().encode(name.trim()).length;
    if (bytes === 0) return setProblem("Give the group a name.");
    if (bytes > nameLimitBytes) return setProblem("The name is too long.");
    if (idProblem(ids)) return setProblem(idProblem(ids));
    setBusy(true);
    try {
      const { conversationId } = await session.api.create(name.trim(), ids, openHistory);
      openWhenKnown(session, conversationId);
      done();
    } catch (error) {
      setBusy(false);
      toastError(error);
    }
  };
  return (
    <form onSubmit={(event) => void submit(event)}>
      <label for="group-name">Name</label>
      <input
        id="group-name"
        autofocus
        autocomplete="off"
        placeholder="Lunch"
        value={name}
        onInput={(event) => {
          setName(event.currentTarget.value);
          setProblem("");
        }}
      />
      <label for="group-members">Members</label>
      <input
        id="group-members"
        autocomplete="off"
        autocapitalize="none"
        spellcheck={false}
        placeholder="bob, carol"
        value={members}
        aria-describedby="group-help"
        onInput={(event) => {
          setMembers(event.currentTarget.value);
          setProblem("");
        }}
      />
      <p id="group-help" class={problem ? "problem" : "quiet"} role={problem ? "alert" : undefined}>
        {problem || "User ids with commas between. You can add more later."}
      </p>
      <label class="check">
        <input type="checkbox" checked={openHistory} onChange={(event) => setOpenHistory(event.currentTarget.checked)} />
        Newcomers see what was written before
      </label>
      <button type="submit" class="primary wide" disabled={busy}>
        {busy ? "Making the group…" : "Make the group"}
      </button>
    </form>
  );
}

/** Opens a conversation that the server has made, as soon as the socket tells of it. */
function openWhenKnown(session: Session, id: string): void {
  const known = session.client.conversation(id);
  if (known) return open(known);
  const off = session.client.on({
    conversations: () => {
      const conversation = session.client.conversation(id);
      if (!conversation) return;
      off();
      open(conversation);
    },
  });
}
