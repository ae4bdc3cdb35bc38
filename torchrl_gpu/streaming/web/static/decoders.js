// Decoders: bytes in, painted picture out.

import { picture } from "./picture.js";

const HELD_MS = 250;       // a decoder may hold a frame for so long before it is acknowledged unpainted

/** JPEG. Two may be decoded at once; an older one that comes late is not painted. */
export class Stills {
  started = 0; painted = 0; over = false;

  async show(header, bytes, done) {
    const turn = ++this.started;
    try {
      const jpeg = new Blob([bytes], { type: "image/jpeg" }), image = await createImageBitmap(jpeg);
      if (turn > this.painted && !this.over) {
        this.painted = turn;
        picture.paint(image, header, jpeg);
      }
      image.close();
    } finally { done(header); }
  }

  close() { this.over = true; }
}

/** H.264 in Annex B through WebCodecs. Begins at a key frame, and again after an error. */
export class Video {
  decoder = null; codec = null; waiting = new Map(); over = false;

  constructor(broken) { this.broken = broken; }

  async show(header, bytes, done) {
    if (header.key) this.prepare(codecOf(bytes));
    if (!this.decoder || this.decoder.state !== "configured") return done(header);
    const held = setTimeout(() => done(header), HELD_MS);
    this.waiting.set(header.seq, { header, done: () => { clearTimeout(held); done(header); } });
    const chunk = new EncodedVideoChunk({ type: header.key ? "key" : "delta", timestamp: header.seq, data: bytes });
    try { this.decoder.decode(chunk); } catch (error) { this.fail(error); }
  }

  prepare(codec) {
    if (this.codec === codec && this.decoder?.state === "configured") return;
    this.release();
    this.codec = codec;
    this.decoder = new VideoDecoder({ output: (frame) => this.decoded(frame), error: (error) => this.fail(error) });
    this.decoder.configure({ codec, optimizeForLatency: true });
  }

  decoded(frame) {
    const entry = this.waiting.get(frame.timestamp);
    this.waiting.delete(frame.timestamp);
    if (entry && !this.over) picture.paint(frame, entry.header);
    frame.close();
    entry?.done();
  }

  fail(error) { this.release(); if (!this.over) this.broken(error); }

  release() {
    for (const entry of this.waiting.values()) entry.done();
    this.waiting.clear();
    if (this.decoder && this.decoder.state !== "closed") this.decoder.close();
    this.decoder = null;
  }

  close() { this.over = true; this.release(); }
}

/** The name of the profile and level that the first SPS of an Annex B chunk declares. */
function codecOf(bytes) {
  for (let i = 0; i + 6 < bytes.length; i++) {
    if (bytes[i] === 0 && bytes[i + 1] === 0 && bytes[i + 2] === 1 && (bytes[i + 3] & 31) === 7)
      return "avc1." + [4, 5, 6].map((j) => bytes[i + j].toString(16).padStart(2, "0").toUpperCase()).join("");
  }
  return "avc1.42E01F";
}
