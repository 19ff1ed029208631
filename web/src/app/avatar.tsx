// A round picture made of a name.

import { hueOf, initials } from "./format.js";
import * as icons from "./icons.js";

interface Props {
  name: string;
  group?: boolean;
  /** Shows a green dot. */
  online?: boolean;
  size?: "s" | "m" | "l";
}

/** The first letters of a name on its colour; decoration, so hidden from screen readers. */
export function Avatar({ name, group = false, online = false, size = "m" }: Props) {
  return (
    <span class={`avatar avatar-${size} hue-${hueOf(name)}`} aria-hidden="true">
      {initials(name)}
      {group && (
        <span class="avatar-mark">
          <icons.Group />
        </span>
      )}
      {online && <span class="avatar-dot" />}
    </span>
  );
}
