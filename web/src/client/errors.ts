// Reasons and close codes: what an answer or a close means for a client.

import { getOption } from "@bufbuild/protobuf";
import { type Error as ErrorFrame, ReasonSchema } from "../gen/imd/client/v1/client_pb.js";
import { type ReasonInfo, reason_info } from "../gen/imd/client/v1/reason_pb.js";

const table = new Map<string, ReasonInfo>();
for (const value of ReasonSchema.values) {
  if (value.number === 0) continue;
  table.set(value.name.replace(/^REASON_/, "").toLowerCase(), getOption(value, reason_info));
}

/** The row of the protocol's error table for a reason such as "not_member"; undefined for one this client does not know. */
export function reasonInfo(reason: string): ReasonInfo | undefined {
  return table.get(reason);
}

/** The reason that a close code stands for; empty if it stands for none. */
export function closeReason(code: number): string {
  for (const [reason, info] of table) if (info.closeCode !== 0 && info.closeCode === code) return reason;
  return "";
}

const stopCodes = new Set([1002, 1003, 1007, 1008, 1009, 1010]);

/** Whether a client connects again after a close with this code. */
export function reconnects(code: number): boolean {
  if (code >= 4500 && code <= 4999) return false;
  return !stopCodes.has(code);
}

/** What a server's refusal says, or a failure that looks the same to the caller. */
export class ImdError extends Error {
  override name = "ImdError";
  constructor(
    /** A word of the error table such as "forbidden"; may be one this client does not know. */
    readonly reason: string,
    message: string,
    /** The same request may be sent again. */
    readonly retryable = false,
    /** Milliseconds to wait before that; 0 = not said. */
    readonly retryAfterMs = 0,
    /** A Connect code word such as "permission_denied"; may be empty. */
    readonly code = "",
  ) {
    super(message);
  }

  /** From an error of a frame or of an HTTP answer's detail. */
  static of(frame: ErrorFrame | undefined): ImdError {
    if (!frame) return new ImdError("internal", "no reason given");
    const known = reasonInfo(frame.reason);
    return new ImdError(
      frame.reason,
      frame.message || known?.meaning || frame.reason,
      frame.retryable,
      frame.retryAfterMs || known?.retryAfterMs || 0,
      frame.code,
    );
  }
}

/**
 * Thrown by a token source that has no token to give and never will: the person
 * has to sign in again. Any other error of a token source is tried again.
 */
export class SignInRequired extends Error {
  override name = "SignInRequired";
}
