import preact from "@preact/preset-vite";
import { defineConfig } from "vite";

// The page is served under a strict content security policy and possibly under
// a path prefix: relative URLs, nothing inlined, no helper scripts.
export default defineConfig({
  base: "./",
  plugins: [preact({ devToolsEnabled: false, prefreshEnabled: false })],
  build: { assetsInlineLimit: 0, modulePreload: false, reportCompressedSize: true, target: "es2022" },
});
