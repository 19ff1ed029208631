import { describe, expect, it } from "vitest";
import { Conversation, ConversationKind, type Entry, EntryKind } from "../client/index.js";
import { changeText, contentText, lastSeen, presenceText, previewOf, typingText } from "./format.js";

const noon = new Date(2026, 4, 20, 12).getTime();
const minute = 60_000;

describe("presence in words", () => {
  it.each([
    [noon - 10_000, "last seen just now"],
    [noon + 10_000, "last seen just now"],
    [noon - minute, "last seen 1 minute ago"],
    [noon - 59 * minute, "last seen 59 minutes ago"],
  ])("says when somebody was here", (at, want) => {
    expect(lastSeen(at, noon)).toBe(want);
  });

  it("names the day of what is longer ago", () => {
    expect(lastSeen(noon - 90 * minute, noon)).toMatch(/^last seen at \d/);
    expect(lastSeen(noon - 20 * 60 * minute, noon)).toMatch(/^last seen yesterday at /);
    expect(lastSeen(noon - 40 * 24 * 60 * minute, noon)).toMatch(/^last seen .*\d/);
  });

  it("says what is known", () => {
    expect(presenceText(undefined, noon)).toBe("");
    expect(presenceText({ online: true, classes: [], lastSeenAt: 0 }, noon)).toBe("online");
    expect(presenceText({ online: false, classes: [], lastSeenAt: 0 }, noon)).toBe("offline");
    expect(presenceText({ online: false, classes: [], lastSeenAt: noon }, noon)).toBe("last seen just now");
  });

  it("says who types", () => {
    const group = new Conversation("me", ConversationKind.GROUP);
    expect(typingText(group)).toBe("");
    group.typing.add("bob");
    expect(typingText(group)).toBe("bob is typing…");
    group.typing.add("anna");
    expect(typingText(group)).toBe("anna and bob are typing…");
    const direct = new Conversation("me", ConversationKind.DIRECT);
    direct.typing.add("bob");
    expect(typingText(direct)).toBe("typing…");
  });
});

function entryWith(part: Partial<Entry>): Entry {
  return { seq: 1, prevSeq: 0, kind: EntryKind.MESSAGE, messageId: "1", sender: "bob", clientMessageId: "", at: 0, ...part } as Entry;
}

describe("what others wrote", () => {
  it.each([
    ["", "(empty)"],
    [" \n\u200b", "(empty)"],
    ["hi", "hi"],
  ])("shows that a text is empty: %j", (text, want) => {
    expect(contentText(entryWith({ content: { text } }))).toBe(want);
  });

  it("names the type of what has no text", () => {
    expect(contentText(entryWith({ content: { type: "wave", text: "" } }))).toBe("(wave)");
    expect(contentText(entryWith({ content: { type: "wave" } }))).toBe("(wave)");
    expect(contentText(entryWith({}))).toBe("");
  });

  it("keeps names from moving what is around them", () => {
    const name = "a\u202eb\nc\u2069d";
    const group = new Conversation("me", ConversationKind.GROUP);
    group.name = name;
    expect(group.title).toBe("ab cd");
    group.name = "\u202e\n";
    group.id = "g_1";
    expect(group.title).toBe("g_1");
    const renamed = entryWith({ kind: EntryKind.CONVERSATION_CHANGE, conversationChange: { name, closed: false } as Entry["conversationChange"] });
    expect(changeText(renamed, "me")).toBe("bob named the group “ab cd”");
    group.lastMessage = renamed;
    expect(previewOf(group).text).toBe("bob named the group “ab cd”");
  });
});
