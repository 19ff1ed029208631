import { describe, expect, it } from "vitest";
import { Conversation, ConversationKind } from "../client/index.js";
import { lastSeen, presenceText, typingText } from "./format.js";

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
