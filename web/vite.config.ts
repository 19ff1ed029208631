import preact from "@preact/preset-vite";
import { defineConfig } from "vite";

// The page is served under a strict content security policy and possibly under
// a path prefix: relative URLs, nothing inlined, no helper scripts.

/**
 * The descriptor of the descriptors has two dozen enums that nothing here
 * uses, written such that no bundler dares to leave them out.
 */
const leaveOutEnums = {
  name: "leave-out-enums",
  transform(code: string, id: string) {
    if (!id.endsWith("/google/protobuf/descriptor_pb.js")) return undefined;
    return code.replace(/export var (\w+);\s*\(function \(\1\) \{(.*?)\}\)\(\1 \|\| \(\1 = \{\}\)\);/gs, "export const $1 = /*@__PURE__*/ (function ($1) {$2; return $1; })({});");
  },
};

export default defineConfig({
  base: "./",
  plugins: [leaveOutEnums, preact({ devToolsEnabled: false, prefreshEnabled: false })],
  build: { assetsInlineLimit: 0, modulePreload: false, reportCompressedSize: true, target: "es2022" },
});
