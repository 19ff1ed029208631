// The digest of a user's heads, by which a client finds that a sync did not tell
// of something. It is made here because the browser's own SHA-256 answers later,
// and on pages without TLS not at all.

/**
 * What one conversation, of which the user is a member, adds to the digest: the
 * first 8 bytes, big-endian, of the SHA-256 of its id, ":" and its head. A digest
 * is the sum modulo 2^64.
 */
export function digestTerm(conversationId: string, head: number): bigint {
  const [high, low] = sha256Begin(new TextEncoder().encode(`${conversationId}:${head}`));
  return (BigInt(high) << 32n) | BigInt(low);
}

/** The first 64 primes, of which SHA-256 takes its constants. */
const primes: number[] = [];
for (let n = 2; primes.length < 64; n++) if (primes.every((p) => n % p !== 0)) primes.push(n);

/** The first 32 bits of the fraction of x. */
const fraction = (x: number) => Math.floor((x - Math.floor(x)) * 2 ** 32) >>> 0;

const roundConstants = Uint32Array.from(primes, (p) => fraction(Math.cbrt(p)));
const startWords = Uint32Array.from(primes.slice(0, 8), (p) => fraction(Math.sqrt(p)));

/** The first two words of the SHA-256 of data. */
function sha256Begin(data: Uint8Array): [number, number] {
  const padded = new Uint8Array((((data.length + 8) >> 6) + 1) << 6);
  padded.set(data);
  padded[data.length] = 0x80;
  const view = new DataView(padded.buffer);
  view.setUint32(padded.length - 4, data.length * 8);
  const state = startWords.slice();
  for (let at = 0; at < padded.length; at += 64) block(state, view, at);
  return [state[0]!, state[1]!];
}

const rotate = (x: number, n: number) => (x >>> n) | (x << (32 - n));

/** Takes the 64 bytes at a place into the state. */
function block(state: Uint32Array, view: DataView, at: number): void {
  const w = new Uint32Array(64);
  for (let i = 0; i < 16; i++) w[i] = view.getUint32(at + 4 * i);
  for (let i = 16; i < 64; i++) {
    const x = w[i - 15]!;
    const y = w[i - 2]!;
    const s0 = rotate(x, 7) ^ rotate(x, 18) ^ (x >>> 3);
    const s1 = rotate(y, 17) ^ rotate(y, 19) ^ (y >>> 10);
    w[i] = w[i - 16]! + s0 + w[i - 7]! + s1;
  }
  let [a, b, c, d, e, f, g, h] = state as unknown as [number, number, number, number, number, number, number, number];
  for (let i = 0; i < 64; i++) {
    const t1 = (h + (rotate(e, 6) ^ rotate(e, 11) ^ rotate(e, 25)) + ((e & f) ^ (~e & g)) + roundConstants[i]! + w[i]!) | 0;
    const t2 = ((rotate(a, 2) ^ rotate(a, 13) ^ rotate(a, 22)) + ((a & b) ^ (a & c) ^ (b & c))) | 0;
    [a, b, c, d, e, f, g, h] = [(t1 + t2) | 0, a, b, c, (d + t1) | 0, e, f, g];
  }
  [a, b, c, d, e, f, g, h].forEach((x, i) => (state[i] = state[i]! + x));
}
