// Icons as inline drawings: they take the colour of the text around them.

import type { ComponentChildren } from "preact";

function Icon({ children, size = 20 }: { children: ComponentChildren; size?: number }) {
  return (
    <svg
      class="icon"
      width={size}
      height={size}
      viewBox="0 0 24 24"
      fill="none"
      stroke="currentColor"
      stroke-width="2"
      stroke-linecap="round"
      stroke-linejoin="round"
      aria-hidden="true"
    >
      {children}
    </svg>
  );
}

export const Back = () => <Icon size={22}><path d="M15 5l-7 7 7 7" /></Icon>;
export const Plus = () => <Icon><path d="M12 5v14M5 12h14" /></Icon>;
export const Pencil = () => <Icon><path d="M4 20h4L19 9l-4-4L4 16v4zM13.500 6.500l4 4" /></Icon>;
export const Close = () => <Icon><path d="M6 6l12 12M18 6L6 18" /></Icon>;
export const Info = () => <Icon><circle cx="12" cy="12" r="9" /><path d="M12 11v5M12 7.600v.1" /></Icon>;
export const Send = () => <Icon><path d="M5 12l14-7-5 14-3-6-6-1z" fill="currentColor" stroke-width="1.500" /></Icon>;
export const Down = () => <Icon><path d="M12 5v14M6 13l6 6 6-6" /></Icon>;
export const Search = () => <Icon size={18}><circle cx="11" cy="11" r="6.500" /><path d="M20 20l-4.200-4.200" /></Icon>;
export const Exit = () => <Icon><path d="M14 4h4a2 2 0 012 2v12a2 2 0 01-2 2h-4M10 8l-4 4 4 4M6 12h10" /></Icon>;
export const Group = () => <Icon size={14}><circle cx="9" cy="8" r="3.500" /><path d="M3 20c0-4 2.500-6 6-6s6 2 6 6M16 5a3.500 3.500 0 010 6.500M18 14.500c2 .8 3 2.600 3 5.500" /></Icon>;
export const Alert = () => <Icon size={16}><circle cx="12" cy="12" r="9" /><path d="M12 7v6M12 16.400v.1" /></Icon>;
export const Clock = () => <Icon size={14}><circle cx="12" cy="12" r="8.500" /><path d="M12 7.500V12l3 2" /></Icon>;
export const Muted = () => <Icon size={14}><path d="M6 16V11a6 6 0 019-5.200M18 11v5H8M10 20h4M4 4l16 16" /></Icon>;
export const Check = () => <Icon size={15}><path d="M5 12.500l4.500 4.500L19 7.500" /></Icon>;
export const Checks = () => <Icon size={17}><path d="M2 12.500l4.500 4.500L15 7.500M11.500 16l1 1L22 7.500" /></Icon>;

/** The mark of the product. */
export function Logo({ size = 40 }: { size?: number }) {
  return (
    <svg class="logo" width={size} height={size} viewBox="0 0 64 64" aria-hidden="true">
      <path d="M32 5C16.500 5 4 15.700 4 29c0 7.600 4.100 14.300 10.500 18.700-.3 3.600-1.700 6.900-4 9.600-.6.800 0 1.900 1 1.800 5.500-.5 10.200-2.500 13.900-5.300 2.100.4 4.300.6 6.600.6 15.500 0 28-10.700 28-24S47.500 5 32 5z" />
      <circle cx="20" cy="29.500" r="3.600" />
      <circle cx="32" cy="29.500" r="3.600" />
      <circle cx="44" cy="29.500" r="3.600" />
    </svg>
  );
}
