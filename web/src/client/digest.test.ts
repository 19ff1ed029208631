import { expect, test } from "vitest";
import { digestTerm } from "./digest.js";

// The same terms are in the test of the server and the Go SDK.
test("terms of a digest", () => {
  expect(digestTerm("g_31", 88)).toBe(6943931884913024186n);
  expect(digestTerm("d_mvjrvdxp5j5zg2j2n6ar37gxia", 9007199254740991)).toBe(9797563130005740999n);
  expect(digestTerm("", 0)).toBe(1866903987063215603n);
});

test("texts of every length", async () => {
  for (let n = 0; n < 200; n++) {
    const id = "é".repeat(n % 3) + "x".repeat(n);
    const sum = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(`${id}:${n}`));
    expect(digestTerm(id, n)).toBe(new DataView(sum).getBigUint64(0));
  }
});
