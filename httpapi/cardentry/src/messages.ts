// What element and frame tell each other, over a port that nobody else has. Neither
// trusts the other further than these shapes: what has no such shape is dropped.

import type { Detail } from "./card-entry.js";

/** The type of the message with which the element hands the frame its end of the port. */
export const CONNECT = "cardvault:connect";

/** How the fields look: custom properties of the element that the frame takes over. */
export const LOOK = [
  "font-family",
  "font-size",
  "color",
  "background",
  "border-color",
  "border-radius",
  "accent-color",
  "error-color",
  "label-color",
  "placeholder-color",
  "gap",
  "padding",
].map((name) => "--card-entry-" + name);

/** All that the element tells of itself, whole whenever some of it changes. */
export interface Setup {
  type: "setup";
  session: string;
  turn: number; // of the session: counts those that the element had
  name: string;
  locale: string;
  dir: string;
  scheme: string;
  look: Record<string, string>;
  texts: Record<string, string>;
}

export type ToFrame = Setup | { type: "submit" } | { type: "focus" } | { type: "reset" };

export type Told =
  | { type: "connected" }
  | { type: "resize"; height: number }
  | { type: "replaced" } // the session; nothing that was submitted before is sent any more
  | { type: "enter" }
  | { type: "challenge"; url: string | null }
  | { type: "ready"; detail: Detail["ready"] }
  | { type: "change"; detail: Detail["change"] }
  | { type: "success"; detail: Detail["success"] }
  | { type: "error"; detail: Failure };

/** What the frame tells, and the turn that it is of. */
export type FromFrame = Told & { turn: number };

/** What a page is told of where it is. Not every browser tells of the pages around it. */
type Place = { origin: string; ancestorOrigins?: ArrayLike<string> };

/** The origins of a page and of those that hold it: at least of the one that refers to it, if any. */
export function embedders({ origin, ancestorOrigins }: Place, referrer: string): string[] {
  const around = ancestorOrigins ?? (referrer ? [new URL(referrer).origin] : []);
  return [...new Set([origin, ...Array.from(around)])];
}

/** Why a submission did not succeed; the element adds the message. */
export type Failure = Omit<Detail["error"], "message">;

const UUID = /^[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}$/i;

/** Whether something is the id of a session or token. */
export function isID(value: unknown): value is string {
  return typeof value === "string" && UUID.test(value);
}

/** The members of an object, or none. */
export function membersOf(value: unknown): Record<string, unknown> {
  return typeof value === "object" && value !== null ? (value as Record<string, unknown>) : {};
}

/** Whether something is a message of the frame. */
export function isFromFrame(message: unknown): message is FromFrame {
  const { type, turn, height, url, detail } = membersOf(message);
  const { action, complete, token_id, reason_code } = membersOf(detail);
  if (typeof turn !== "number") return false;
  switch (type) {
    case "connected":
    case "replaced":
    case "enter":
      return true;
    case "resize":
      return typeof height === "number" && height > 0 && height < 10_000;
    case "challenge":
      return url === null || typeof url === "string";
    case "ready":
      return typeof action === "string";
    case "change":
      return typeof complete === "boolean";
    case "success":
      return isID(token_id);
    case "error":
      return typeof reason_code === "string" && typeof action === "string";
    default:
      return false;
  }
}

/** Whether something is a message of the element. */
export function isToFrame(message: unknown): message is ToFrame {
  const { type, turn, look, texts, ...values } = membersOf(message);
  if (type === "submit" || type === "focus" || type === "reset") return true;
  if (type !== "setup" || typeof turn !== "number") return false;
  const all = [look, texts, values].flatMap((part) => Object.values(membersOf(part)));
  return Object.keys(values).length === 5 && all.every((value) => typeof value === "string");
}
