declare module "*.css";
declare module "node:fs" {
  export function readFileSync(path: string | URL, encoding: "utf8"): string;
  export function existsSync(path: string | URL): boolean;
}
declare const process: { env: Record<string, string | undefined> };
