import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { uuid7 } from "./client.js";

beforeEach(() => void vi.useFakeTimers());
afterEach(() => void vi.useRealTimers());

describe("ids", () => {
  const form = /^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/;

  it("are UUIDs of version 7 and all different", () => {
    const made = Array.from({ length: 10_000 }, uuid7);
    expect(new Set(made).size).toBe(made.length);
    expect(made.filter((id) => !form.test(id))).toEqual([]);
  });

  it("begin with the time", () => {
    vi.setSystemTime(0x019ad5f06f0e);
    const before = uuid7();
    expect(before.slice(0, 14)).toBe("019ad5f0-6f0e-");
    vi.setSystemTime(0x019ad5f06f10);
    expect(uuid7() > before).toBe(true);
  });

  it("have their form with a clock before 1970", () => {
    vi.setSystemTime(-1);
    expect(uuid7()).toMatch(form);
  });
});
