import { defineConfig } from "vitest/config";

// The tests read the vector file that the Go SDK passes too, so they may look
// outside of this folder.
export default defineConfig({
  test: { include: ["src/**/*.test.ts"], environment: "node" },
});
