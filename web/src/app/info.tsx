// The panel about a conversation: its members and what can be done with it.

import { useEffect, useState } from "preact/hooks";
import { type Conversation, ConversationKind, type Member, receiptMembers, Role } from "../client/index.js";
import { Avatar } from "./avatar.js";
import { idProblem, idsOf } from "./dialog.js";
import { plural, presenceText } from "./format.js";
import * as icons from "./icons.js";
import type { Session } from "./session.js";
import { infoOpen, muted, mutes, readMutes, tick, toast, toastError } from "./state.js";

interface Props {
  session: Session;
  conversation: Conversation;
}

/** Members, name and leaving of a group; blocking of a person. */
export function InfoPanel({ session, conversation }: Props) {
  void tick.value;
  return (
    <aside class="info" aria-label="About this conversation">
      <header class="bar">
        <h2 class="bar-title">{conversation.kind === ConversationKind.GROUP ? "Group" : "Person"}</h2>
        <button type="button" class="round" aria-label="Close" title="Close" onClick={() => (infoOpen.value = false)}>
          <icons.Close />
        </button>
      </header>
      <div class="info-body">
        {conversation.id !== "" && conversation.role !== Role.UNSPECIFIED && <MuteChoice session={session} conversation={conversation} />}
        {conversation.kind === ConversationKind.GROUP ? (
          <GroupInfo session={session} conversation={conversation} />
        ) : (
          <PersonInfo session={session} conversation={conversation} />
        )}
      </div>
    </aside>
  );
}

const hour = 3_600_000;

/** For how long notices about new messages are kept away. */
function MuteChoice({ session, conversation }: Props) {
  void tick.value;
  const until = mutes.value.get(conversation.id) ?? 0;
  const run = (what: Promise<void>, done: string) =>
    void what.then(() => readMutes(session)).then(() => toast(done), toastError);
  if (muted(conversation)) {
    return (
      <div class="info-actions">
        <button type="button" onClick={() => run(session.api.unmute(conversation.id), "You are notified of new messages again.")}>
          Unmute
        </button>
        <span class="quiet">{until === 0 ? "Muted" : `Muted until ${new Date(until).toLocaleString()}`}</span>
      </div>
    );
  }
  const choose = (event: Event & { currentTarget: HTMLSelectElement }) => {
    const hours = event.currentTarget.value;
    event.currentTarget.value = "";
    if (hours === "") return;
    const end = hours === "0" ? 0 : Date.now() + Number(hours) * hour;
    run(session.api.mute(conversation.id, end), "You are not notified of new messages here.");
  };
  return (
    <div class="info-actions">
      <select class="role" aria-label="Mute this conversation" onChange={choose}>
        <option value="">Mute</option>
        <option value="1">for an hour</option>
        <option value="8">for 8 hours</option>
        <option value="168">for a week</option>
        <option value="0">until I unmute it</option>
      </select>
    </div>
  );
}

function PersonInfo({ session, conversation }: Props) {
  const run = (what: Promise<void>, done: string) => void what.then(() => toast(done), toastError);
  void tick.value;
  const { peerId } = conversation;
  const presence = session.client.presence(peerId);
  return (
    <>
      <div class="info-head">
        <Avatar name={peerId} online={presence?.online === true} size="l" />
        <h3>{peerId}</h3>
        {presence && <p class="quiet">{presenceText(presence, Date.now())}</p>}
      </div>
      <div class="info-actions">
        <button type="button" class="danger" onClick={() => run(session.api.block(peerId), `${peerId} cannot write to you any more.`)}>
          Block {peerId}
        </button>
        <button type="button" onClick={() => run(session.api.unblock(peerId), `${peerId} can write to you.`)}>
          Unblock
        </button>
      </div>
      <p class="quiet">Whom you block cannot write to you here. In groups you still see each other.</p>
    </>
  );
}

function GroupInfo({ session, conversation }: Props) {
  void tick.value;
  const members = useMembers(session, conversation);
  const staff = conversation.role === Role.ADMIN || conversation.role === Role.OWNER;
  const canChange = staff && conversation.writable;
  const [sure, setSure] = useState(false);
  const leave = () => {
    if (!sure) return setSure(true);
    session.api.leave(conversation.id).then(() => (infoOpen.value = false), toastError);
    setSure(false);
  };
  return (
    <>
      <div class="info-head">
        <Avatar name={conversation.title} group size="l" />
        <Name session={session} conversation={conversation} canChange={canChange} />
        <p class="quiet">{plural(conversation.memberCount, "member")}</p>
      </div>
      {canChange && <AddMembers session={session} conversation={conversation} />}
      <ul class="members" aria-label="Members">
        {members.map((m) => (
          <MemberRow key={m.userId} session={session} conversation={conversation} member={m} />
        ))}
      </ul>
      {conversation.role !== Role.UNSPECIFIED && (
        <div class="info-actions">
          <button type="button" class="danger" onClick={leave} onBlur={() => setSure(false)}>
            {sure ? "Really leave?" : "Leave the group"}
          </button>
        </div>
      )}
    </>
  );
}

function Name({ session, conversation, canChange }: Props & { canChange: boolean }) {
  void tick.value;
  const [name, setName] = useState<string | undefined>(undefined);
  if (name === undefined) {
    return (
      <h3 class="info-name">
        <bdi>{conversation.title}</bdi>
        {canChange && (
          <button type="button" class="round" aria-label="Rename the group" title="Rename" onClick={() => setName(conversation.name)}>
            <icons.Pencil />
          </button>
        )}
      </h3>
    );
  }
  const submit = (event: Event) => {
    event.preventDefault();
    const wanted = name.trim();
    if (wanted === "" || wanted === conversation.name) return setName(undefined);
    session.api.rename(conversation.id, wanted).then(() => setName(undefined), toastError);
  };
  return (
    <form class="inline" onSubmit={submit}>
      <input
        aria-label="Name of the group"
        autofocus
        ref={(input) => input?.focus()}
        value={name}
        onInput={(event) => setName(event.currentTarget.value)}
        onKeyDown={(event) => {
          if (event.key !== "Escape") return;
          event.stopPropagation();
          setName(undefined);
        }}
      />
      <button type="submit" class="primary">
        Save
      </button>
    </form>
  );
}

function AddMembers({ session, conversation }: Props) {
  const [text, setText] = useState("");
  const submit = (event: Event) => {
    event.preventDefault();
    const ids = idsOf(text);
    if (ids.length === 0) return;
    const problem = idProblem(ids);
    if (problem) return toast(problem);
    session.api.addMembers(conversation.id, ids).then(() => setText(""), toastError);
  };
  return (
    <form class="inline" onSubmit={submit}>
      <input
        aria-label="User ids to add"
        placeholder="Add by user id"
        autocomplete="off"
        autocapitalize="none"
        spellcheck={false}
        value={text}
        onInput={(event) => setText(event.currentTarget.value)}
      />
      <button type="submit" class="primary" disabled={text.trim() === ""}>
        Add
      </button>
    </form>
  );
}

function MemberRow({ session, conversation, member }: Props & { member: Member }) {
  void tick.value;
  const self = member.userId === session.userId;
  const presence = session.client.presence(member.userId);
  const owner = conversation.role === Role.OWNER;
  const staff = owner || conversation.role === Role.ADMIN;
  const removable = staff && !self && member.role !== Role.OWNER && conversation.writable;
  const setRole = (role: Role) => void session.api.setRole(conversation.id, member.userId, role).catch(toastError);
  const remove = () => void session.api.removeMembers(conversation.id, [member.userId]).catch(toastError);
  return (
    <li class="member">
      <Avatar name={member.userId} online={presence?.online === true} size="s" />
      <span class="member-name">
        {member.userId}
        {self && <span class="quiet"> (you)</span>}
        {!self && presence && <span class="member-seen quiet">{presenceText(presence, Date.now())}</span>}
      </span>
      {owner && !self && conversation.writable ? (
        <select
          class="role"
          aria-label={`Role of ${member.userId}`}
          value={member.role}
          onChange={(event) => setRole(Number(event.currentTarget.value))}
        >
          <option value={Role.MEMBER}>member</option>
          <option value={Role.ADMIN}>admin</option>
          <option value={Role.OWNER}>owner</option>
        </select>
      ) : (
        member.role > Role.MEMBER && <span class="role">{member.role === Role.OWNER ? "owner" : "admin"}</span>
      )}
      {removable && (
        <button type="button" class="round" aria-label={`Remove ${member.userId}`} title="Remove" onClick={remove}>
          <icons.Close />
        </button>
      )}
    </li>
  );
}

/** The members of a group, read again whenever its log says they changed, for as long as one is a member. */
function useMembers(session: Session, conversation: Conversation): Member[] {
  const [members, setMembers] = useState<Member[]>([]);
  const member = conversation.role !== Role.UNSPECIFIED;
  const changed = conversation.timeline.entries.findLast((e) => e.memberChange)?.seq ?? 0;
  useEffect(() => {
    if (!member) return undefined;
    let here = true;
    session.api.listMembers(conversation.id).then(
      (list) => here && setMembers(list),
      (error) => here && toastError(error),
    );
    return () => {
      here = false;
    };
  }, [conversation, changed, conversation.memberCount, conversation.role]);
  return members;
}

/** Reads how far the members of a small group have come; later changes come as receipts. */
export function useReceipts(session: Session, conversation: Conversation): void {
  const online = session.client.state.phase === "online";
  const small = conversation.kind === ConversationKind.GROUP && conversation.memberCount <= receiptMembers;
  const member = conversation.role !== Role.UNSPECIFIED;
  useEffect(() => {
    if (!small || !online || !member || conversation.id === "") return undefined;
    let here = true;
    session.api.listMembers(conversation.id, receiptMembers).then(
      (list) => here && session.client.applyReceipts(conversation, list),
      () => {}, // Marks stay at "sent" until receipts come.
    );
    return () => {
      here = false;
    };
  }, [conversation, small, online, member, conversation.memberCount]);
}
