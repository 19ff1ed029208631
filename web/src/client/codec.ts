// The frame codec: what one WebSocket message of either subprotocol holds.

import {
  type DescMessage,
  type MessageShape,
  fromBinary,
  fromJsonString,
  toBinary,
  toJsonString,
} from "@bufbuild/protobuf";
import { type ClientFrame, ClientFrameSchema, type ServerFrame, ServerFrameSchema } from "../gen/imd/client/v1/client_pb.js";

/** How frames are written: JSON lines in text messages, or length-prefixed protobuf in binary ones. */
export type Encoding = "json" | "proto";

/** The WebSocket subprotocol of each encoding. */
export const subprotocols: Record<Encoding, string> = { json: "imd.v1.json", proto: "imd.v1.proto" };

/** One WebSocket message: text for "json", bytes for "proto". */
export type Envelope = string | Uint8Array<ArrayBuffer>;

/** The most frames in an envelope to the server. */
export const maxFrames = 64;
/** The most bytes of an envelope to the server, by encoding. */
export const maxEnvelopeBytes: Record<Encoding, number> = { json: 131_072, proto: 65_536 };

/** What came cannot be decoded. The connection it came on is of no more use. */
export class CodecError extends Error {
  override name = "CodecError";
}

const utf8 = new TextEncoder();

/**
 * Writes client frames into as few envelopes as the limits to the server allow,
 * in order. A single frame above the byte limit gets an envelope of its own.
 */
export function encodeClient(encoding: Encoding, frames: readonly ClientFrame[]): Envelope[] {
  return encode(encoding, ClientFrameSchema, frames);
}

/** Writes server frames; for tests and tools that play the server. */
export function encodeServer(encoding: Encoding, frames: readonly ServerFrame[]): Envelope[] {
  return encode(encoding, ServerFrameSchema, frames);
}

/**
 * Reads the frames of one envelope from the server. A frame of a kind this
 * client does not know comes with kind.case undefined; unknown fields are
 * ignored. Throws CodecError.
 */
export function decodeServer(encoding: Encoding, data: string | ArrayBuffer | Uint8Array): ServerFrame[] {
  return decode(encoding, ServerFrameSchema, data);
}

/** Reads the frames of one envelope from a client; for tests and tools that play the server. Throws CodecError. */
export function decodeClient(encoding: Encoding, data: string | ArrayBuffer | Uint8Array): ClientFrame[] {
  return decode(encoding, ClientFrameSchema, data);
}

function encode<D extends DescMessage>(encoding: Encoding, schema: D, frames: readonly MessageShape<D>[]): Envelope[] {
  const parts = frames.map((frame) =>
    encoding === "json" ? utf8.encode(`${toJsonString(schema, frame)}\n`) : prefixed(toBinary(schema, frame)),
  );
  const envelopes: Envelope[] = [];
  let batch: Uint8Array[] = [];
  let size = 0;
  const flush = () => {
    if (batch.length === 0) return;
    const bytes = concat(batch, size);
    envelopes.push(encoding === "json" ? new TextDecoder().decode(bytes) : bytes);
    batch = [];
    size = 0;
  };
  for (const part of parts) {
    if (batch.length === maxFrames || size + part.length > maxEnvelopeBytes[encoding]) flush();
    batch.push(part);
    size += part.length;
  }
  flush();
  return envelopes;
}

function decode<D extends DescMessage>(
  encoding: Encoding,
  schema: D,
  data: string | ArrayBuffer | Uint8Array,
): MessageShape<D>[] {
  if (encoding === "json") {
    if (typeof data !== "string") throw new CodecError("a binary message under imd.v1.json");
    return decodeLines(schema, data);
  }
  if (typeof data === "string") throw new CodecError("a text message under imd.v1.proto");
  return decodePrefixed(schema, data instanceof Uint8Array ? data : new Uint8Array(data));
}

function decodeLines<D extends DescMessage>(schema: D, text: string): MessageShape<D>[] {
  const frames: MessageShape<D>[] = [];
  for (const line of text.split("\n")) {
    if (line.trim() === "") continue;
    try {
      frames.push(fromJsonString(schema, line, { ignoreUnknownFields: true }));
    } catch (cause) {
      throw new CodecError("a frame is not valid JSON of the protocol", { cause });
    }
  }
  return frames;
}

function decodePrefixed<D extends DescMessage>(schema: D, bytes: Uint8Array): MessageShape<D>[] {
  const frames: MessageShape<D>[] = [];
  let at = 0;
  while (at < bytes.length) {
    const [length, next] = varint(bytes, at);
    if (next + length > bytes.length) throw new CodecError("a frame ends behind its envelope");
    try {
      frames.push(fromBinary(schema, bytes.subarray(next, next + length)));
    } catch (cause) {
      throw new CodecError("a frame is not valid protobuf of the protocol", { cause });
    }
    at = next + length;
  }
  return frames;
}

/** Reads a length of at most 5 bytes; returns it and the offset behind it. */
function varint(bytes: Uint8Array, at: number): [length: number, next: number] {
  let value = 0;
  for (let i = 0; i < 5; i++) {
    const byte = bytes[at + i];
    if (byte === undefined) break;
    value += (byte & 0x7f) * 2 ** (7 * i);
    if (byte < 0x80) return [value, at + i + 1];
  }
  throw new CodecError("a frame's length is broken");
}

function prefixed(frame: Uint8Array): Uint8Array {
  const head: number[] = [];
  let rest = frame.length;
  while (rest >= 0x80) {
    head.push((rest & 0x7f) | 0x80);
    rest >>>= 7;
  }
  head.push(rest);
  const out = new Uint8Array(head.length + frame.length);
  out.set(head);
  out.set(frame, head.length);
  return out;
}

function concat(parts: readonly Uint8Array[], size: number): Uint8Array<ArrayBuffer> {
  const out = new Uint8Array(size);
  let at = 0;
  for (const part of parts) {
    out.set(part, at);
    at += part.length;
  }
  return out;
}
