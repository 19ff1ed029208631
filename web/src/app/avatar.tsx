// A round picture made of a name.

import { hueOf, initials } from "./format.js";
import * as icons from "./icons.js";

/** The first letters of a name on its colour; decoration, so hidden from screen readers. */
export function Avatar({ name, group = false, size = "m" }: { name: string; group?: boolean; size?: "s" | "m" | "l" }) {
  return (
    <span class={`avatar avatar-${size} hue-${hueOf(name)}`} aria-hidden="true">
      {initials(name)}
      {group && (
        <span class="avatar-mark">
          <icons.Group />
        </span>
      )}
    </span>
  );
}
