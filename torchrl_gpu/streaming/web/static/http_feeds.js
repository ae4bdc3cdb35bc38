// Pictures over plain HTTP: multipart JPEG, or one at a time.

import { clock, now, stopped, traffic, view } from "./state.js";
import { address, decodeText, pause, reasonOf, within } from "./http.js";
import { picture } from "./picture.js";
import { Stills } from "./decoders.js";
import { curves } from "./curves.js";
import { TRANSPORTS } from "./transports.js";
import { listStreams } from "./lists.js";
import { ask, connected, lost, stepDown } from "./connection.js";

const watched = () => (view.limit ? { stream: view.stream, fps: view.limit } : { stream: view.stream });

/** What the pictures of plain HTTP answers share: the header comes in a field of the answer. */
class HttpFeed {
  replays = false; commands = false;
  stills = new Stills(); stop = new AbortController(); newest = 0; // point of a curve

  constructor() {
    clock.reset();
    curves.expectNew();
    this.readCurves();
    this.lists = setInterval(() => this.list(), 3000);
    queueMicrotask(() => this.run());
  }

  async run() {
    const { signal } = this.stop;
    try {
      if (view.stream === null) connected();
      else if (!stopped()) await this.pictures(signal);
    } catch (error) { if (!signal.aborted) lost(error.why ?? ""); }
  }

  /** What the WebSocket would have told. */
  async list() {
    if (view.hidden) return;
    const sentAt = now(), answer = await fetch(address("streams"), { cache: "no-store" }).catch(() => null);
    if (!answer?.ok || this.stop.signal.aborted) return;
    clock.request(sentAt, now());
    listStreams(await answer.json());
    await this.readCurves();
  }

  async readCurves() {
    const answer = await fetch(address("curves", { since: this.newest }), { cache: "no-store" }).catch(() => null);
    if (!answer?.ok || this.stop.signal.aborted) return;
    const { newest, curves: found } = await answer.json();
    this.newest = newest;
    curves.take(found);
  }

  show(fields, bytes) {
    const header = JSON.parse(fields.get("X-Frame") ?? "{}");
    if (header.sent) clock.picture(now(), header.sent * 1000);
    traffic.add(bytes.byteLength, picture.isNew(header));
    if (header.stream && header.stream !== view.stream) return;
    return new Promise((painted) => this.stills.show(header, bytes, painted).catch(painted));
  }

  async snapshot(signal) {
    const answer = await fetch(address("snapshot.jpg", { stream: view.stream }), { signal, cache: "no-store" });
    if (answer.status === 401) return ask();
    if (!answer.ok) return false;
    await this.show(answer.headers, new Uint8Array(await answer.arrayBuffer()));
    return true;
  }

  again() { this.stop.abort(); this.stop = new AbortController(); this.stills.close(); this.stills = new Stills(); this.run(); }
  watch() { this.again(); }
  hold() { this.again(); }
  close() { clearInterval(this.lists); this.stop.abort(); this.stills.close(); }
}

/** One picture, asked for again when it has been painted. */
class SnapshotFeed extends HttpFeed {
  async pictures(signal) {
    while (!signal.aborted) {
      const began = now();
      if (await this.snapshot(signal)) connected();
      await pause(Math.max(1000 / (view.limit ?? 15) - (now() - began), 15));
    }
  }
}

/** Multipart JPEG, taken apart here rather than by <img>, so that each picture comes with its header. */
class MultipartFeed extends HttpFeed {
  async pictures(signal) {
    await this.snapshot(signal).catch(() => {}); // a picture at once, also of a source that stands still
    const answer = await within(5000, signal, (both) =>
      fetch(address("stream.mjpg", { ...watched(), compat: 1 }), { signal: both, cache: "no-store" }));
    if (answer.status === 401) return ask();
    if (!answer.ok) throw Object.assign(new Error("refused"), { why: await reasonOf(answer) });
    connected();
    for await (const part of parts(answer.body.getReader())) await this.show(part.fields, part.bytes);
    throw new Error("ended");
  }

  async run() {
    clearTimeout(this.late);
    this.late = setTimeout(() => picture.any || stopped() || this.tryPolling(), 6000);
    await super.run();
  }

  /** Some proxies hold a stream back for ever, but pass on single pictures. */
  async tryPolling() {
    if (view.wish === "auto" && view.stream !== null && await this.snapshot(this.stop.signal).catch(() => false)) stepDown("The stream is held back", "snapshot");
  }

  close() { clearTimeout(this.late); super.close(); }
}

/** Parts of a multipart stream whose parts say their length. */
async function* parts(reader) {
  let held = new Uint8Array(0);
  const more = async () => {
    const { value, done } = await reader.read();
    if (done) throw new Error("ended");
    const joined = new Uint8Array(held.length + value.length);
    joined.set(held); joined.set(value, held.length);
    held = joined;
  };
  const limit = 1 << 16; // of a part's fields
  for (;;) {
    let end;
    while ((end = blankLine(held, limit)) < 0) { if (held.length > limit) throw new Error("no fields"); await more(); }
    const lines = decodeText(held.subarray(0, end)).split("\r\n").map((line) => line.split(/:\s*(.*)/s));
    const fields = new Headers(lines.filter((pair) => pair.length > 1).map(([name, value]) => [name, value]));
    const length = Number(fields.get("Content-Length"));
    if (!(length > 0)) throw new Error("no length");
    while (held.length < end + 4 + length) await more();
    const bytes = held.slice(end + 4, end + 4 + length);
    held = held.slice(end + 4 + length);
    yield { fields, bytes };
  }
}

function blankLine(bytes, limit) {
  for (let i = 0; i + 3 < Math.min(bytes.length, limit); i++)
    if (bytes[i] === 13 && bytes[i + 1] === 10 && bytes[i + 2] === 13 && bytes[i + 3] === 10) return i;
  return -1;
}

TRANSPORTS.mjpeg = { name: "MJPEG", make: () => new MultipartFeed(), lacking: () => "", onlyWatches: true };
TRANSPORTS.snapshot = { name: "Snapshots", make: () => new SnapshotFeed(), lacking: () => "", onlyWatches: true };
