import { defineConfig } from "vitest/config";

// The tests read the vector file that the Go SDK passes too, so they may look
// outside of this folder.
export default defineConfig({
  // The limit of a test is for what hangs: how long one takes is up to the machine, and
  // what they test has a clock of its own.
  test: { include: ["src/**/*.test.ts"], environment: "node", testTimeout: 60_000, hookTimeout: 60_000 },
});
