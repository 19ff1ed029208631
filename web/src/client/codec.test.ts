import { create } from "@bufbuild/protobuf";
import { describe, expect, it } from "vitest";
import {
  Ack,
  AckRangeSchema,
  ClientFrameSchema,
  ContentSchema,
  DeliverSchema,
  DeliveryAckSchema,
  EntryKind,
  EntrySchema,
  HeadSchema,
  HelloSchema,
  PingSchema,
  PongSchema,
  SendAckSchema,
  SendSchema,
  ServerFrameSchema,
  SyncResultSchema,
  SyncSchema,
  WelcomeSchema,
} from "../gen/imd/client/v1/client_pb.js";
import { CodecError, decodeClient, decodeServer, encodeClient, encodeServer, maxEnvelopeBytes, maxFrames } from "./codec.js";

const id = "5f0c6f0e-8a5b-4c1e-9d27-3b1f6a2e7c01";
const conversationId = "d_mvjrvdxp5j5zg2j2n6ar37gxia";
const message = { messageId: "301234567890123776", serverTimeMs: 1795975200100n };

/** The first two worked exchanges of the protocol, as envelopes of frames, with their binary form. */
const clientEnvelopes = [
  {
    frames: [
      create(ClientFrameSchema, { id: 1, kind: { case: "hello", value: create(HelloSchema, { version: 1, token: "T1", deviceId: "a-web", class: "web" }) } }),
      create(ClientFrameSchema, { id: 2, kind: { case: "sync", value: create(SyncSchema, { pageLimit: 20 }) } }),
    ],
    hex: "16080112120801120254311a05612d776562220377656206080232021814",
    json:
      '{"id":1,"hello":{"version":1,"token":"T1","deviceId":"a-web","class":"web"}}\n' + '{"id":2,"sync":{"pageLimit":20}}\n',
  },
  {
    frames: [send(false)],
    hex: "3808031a341a2435663063366630652d386135622d346331652d396432372d3362316636613265376330313207120568656c6c6f1203626f62",
    json: `{"id":3,"send":{"toUser":"bob","clientMessageId":"${id}","content":{"text":"hello"}}}\n`,
  },
  {
    frames: [
      create(ClientFrameSchema, {
        kind: { case: "ack", value: create(DeliveryAckSchema, { ranges: [create(AckRangeSchema, { conversationId, seq: 1n })] }) },
      }),
    ],
    hex: "2422220a200a1c645f6d766a7276647870356a357a67326a326e3661723337677869611801",
    json: `{"ack":{"ranges":[{"conversationId":"${conversationId}","seq":"1"}]}}\n`,
  },
  {
    frames: [send(true)],
    hex: "3a08031a361a2435663063366630652d386135622d346331652d396432372d33623166366132653763303120013207120568656c6c6f1203626f62",
    json: `{"id":3,"send":{"toUser":"bob","clientMessageId":"${id}","resend":true,"content":{"text":"hello"}}}\n`,
  },
];

const serverEnvelopes = [
  {
    frames: [
      create(ServerFrameSchema, {
        id: 1,
        kind: {
          case: "welcome",
          value: create(WelcomeSchema, {
            version: 1,
            sessionId: "s-1",
            userId: "alice",
            deviceId: "a-web",
            dataEpoch: "e7",
            serverTimeMs: 1795975200000n,
            tokenExpireMs: 1795978800000n,
            pingIntervalMs: 25000,
            pongTimeoutMs: 10000,
          }),
        },
      }),
      create(ServerFrameSchema, {
        id: 2,
        kind: { case: "syncResult", value: create(SyncResultSchema, { syncToken: "t1", dataEpoch: "e7", full: true }) },
      }),
    ],
    hex: "320801122e08011203732d311a05616c6963652205612d7765622a0265373080fadac3a2343880d7b6c5a23440a8c30148904e0e0802320a12027431220265372801",
  },
  {
    frames: [
      create(ServerFrameSchema, {
        id: 3,
        kind: { case: "sendAck", value: create(SendAckSchema, { clientMessageId: id, status: Ack.OK, conversationId, seq: 1n, ...message }) },
      }),
    ],
    hex: "5d08031a590a2435663063366630652d386135622d346331652d396432372d33623166366132653763303110011a1c645f6d766a7276647870356a357a67326a326e3661723337677869612080f8a2a9e5e78c9704280138e4fadac3a234",
  },
  {
    frames: [
      create(ServerFrameSchema, {
        kind: {
          case: "deliver",
          value: create(DeliverSchema, {
            conversationId,
            entries: [
              create(EntrySchema, {
                seq: 1n,
                kind: EntryKind.MESSAGE,
                clientMessageId: id,
                sender: "alice",
                content: create(ContentSchema, { value: { case: "text", value: "hello" } }),
                countable: true,
                ...message,
              }),
            ],
          }),
        },
      }),
    ],
    hex: "6f226d0a1c645f6d766a7276647870356a357a67326a326e366172333767786961124d080118012080f8a2a9e5e78c97042a2435663063366630652d386135622d346331652d396432372d33623166366132653763303132 05616c69636538e4fadac3a2344207120568656c6c6f5001".replace(" ", ""),
  },
  {
    frames: [create(ServerFrameSchema, { kind: { case: "head", value: create(HeadSchema, { conversationId, seq: 1n }) } })],
    hex: "2262200a1c645f6d766a7276647870356a357a67326a326e3661723337677869611001",
  },
];

function send(resend: boolean) {
  const value = create(SendSchema, {
    to: { case: "toUser", value: "bob" },
    clientMessageId: id,
    resend,
    content: create(ContentSchema, { value: { case: "text", value: "hello" } }),
  });
  return create(ClientFrameSchema, { id: 3, kind: { case: "send", value } });
}

const hexOf = (bytes: Uint8Array) => [...bytes].map((b) => b.toString(16).padStart(2, "0")).join("");
const bytesOf = (hex: string) => Uint8Array.from(hex.match(/../g) ?? [], (b) => Number.parseInt(b, 16));

describe("the worked exchanges", () => {
  it.each(clientEnvelopes)("from the client: $json", ({ frames, hex, json }) => {
    // Fields may be written in any order, so only the size is the same.
    const [envelope] = encodeClient("proto", frames);
    expect(envelope).toHaveLength(hex.length / 2);
    expect(decodeClient("proto", envelope!)).toEqual(frames);
    expect(encodeClient("json", frames)).toEqual([json]);
    expect(decodeClient("proto", bytesOf(hex))).toEqual(frames);
    expect(decodeClient("json", json)).toEqual(frames);
  });
  it.each(serverEnvelopes)("from the server: $hex", ({ frames, hex }) => {
    expect(decodeServer("proto", bytesOf(hex))).toEqual(frames);
    expect(decodeServer("proto", bytesOf(hex).buffer)).toEqual(frames);
    expect(encodeServer("proto", frames).map((e) => hexOf(e as Uint8Array))).toEqual([hex]);
    expect(decodeServer("json", encodeServer("json", frames)[0]!)).toEqual(frames);
  });
});

describe("what comes from a newer server", () => {
  it("unknown fields and enum values change nothing", () => {
    const line = '{"ping":{"intervalMs":5,"mood":"good"},"more":1}\n\n  {"deliver":{"entries":[{"seq":"1","kind":"ENTRY_KIND_POEM"}]}} \n';
    const [ping, deliver] = decodeServer("json", line);
    expect(ping!.kind).toEqual({ case: "ping", value: create(PingSchema, { intervalMs: 5 }) });
    expect(deliver!.kind.case).toBe("deliver");
  });
  it("a frame of an unknown kind comes without one", () => {
    expect(decodeServer("json", '{"id":4,"poem":{}}')[0]).toMatchObject({ id: 4, kind: { case: undefined } });
    expect(decodeServer("proto", bytesOf("050804ea0600"))[0]).toMatchObject({ id: 4, kind: { case: undefined } });
  });
});

describe("what cannot be decoded", () => {
  it.each([
    ["a length behind the end", "proto", bytesOf("10080112")],
    ["a length without end", "proto", bytesOf("ffffffffffff")],
    ["a length that is cut off", "proto", bytesOf("80")],
    ["broken protobuf", "proto", bytesOf("0208ff")],
    ["text under the binary form", "proto", "{}"],
    ["bytes under the text form", "json", bytesOf("00")],
    ["broken JSON", "json", '{"ping":'],
    ["two kinds", "json", '{"ping":{},"drain":{}}'],
    ["no object", "json", "[]"],
  ] as const)("%s", (_, encoding, data) => {
    expect(() => decodeServer(encoding, data)).toThrow(CodecError);
  });
});

describe("envelopes", () => {
  const pong = create(ClientFrameSchema, { kind: { case: "pong", value: create(PongSchema) } });
  it("hold at most so many frames", () => {
    for (const encoding of ["json", "proto"] as const) {
      const envelopes = encodeClient(encoding, Array.from({ length: 2 * maxFrames + 1 }, () => pong));
      expect(envelopes.map((e) => decodeClient(encoding, e).length)).toEqual([maxFrames, maxFrames, 1]);
    }
  });
  it("hold at most so many bytes", () => {
    const big = Array.from({ length: 12 }, () =>
      create(ClientFrameSchema, {
        kind: { case: "send", value: create(SendSchema, { content: create(ContentSchema, { value: { case: "text", value: "ü".repeat(8_000) } }) }) },
      }),
    );
    for (const encoding of ["json", "proto"] as const) {
      const envelopes = encodeClient(encoding, big);
      const sizes = envelopes.map((e) => (typeof e === "string" ? new TextEncoder().encode(e).length : e.length));
      expect(Math.max(...sizes)).toBeLessThanOrEqual(maxEnvelopeBytes[encoding]);
      expect(envelopes.flatMap((e) => decodeClient(encoding, e))).toEqual(big);
    }
  });
  it("nothing makes no envelope", () => {
    expect(encodeClient("json", [])).toEqual([]);
    expect(decodeServer("proto", new Uint8Array())).toEqual([]);
  });
});
