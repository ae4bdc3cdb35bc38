// The WebSocket.

import { clock, now } from "./state.js";
import { address, decodeText } from "./http.js";
import { curves } from "./curves.js";
import { learn } from "./lists.js";

export const PING_MS = 2000;      // how often the clocks are compared
const SILENCE_MS = 9000;   // a socket that says nothing for so long is dead, pongs being something

/** The WebSocket: what the server says, clocks compared, a watch on silence. */
export class Channel {
  constructor(on) {
    this.on = on; this.heardAt = now(); this.pinged = 0;
    const url = address("ws");
    url.protocol = url.protocol === "https:" ? "wss:" : "ws:";
    this.socket = new WebSocket(url);
    this.socket.binaryType = "arraybuffer";
    this.socket.onmessage = (event) => this.heard(event.data);
    this.socket.onclose = () => this.end();
    this.timer = setInterval(() => this.check(), PING_MS);
  }

  heard(data) {
    this.heardAt = now();
    if (typeof data !== "string") return this.on.frame(data);
    const message = JSON.parse(data);
    if (message.type === "pong") clock.ping(message.t, now(), message.now * 1000);
    else if (message.type === "hello") { this.greeted = true; this.ping(); curves.expectNew(); learn(message); this.on.hello(message); }
    else learn(message);
  }

  ping() { this.send({ type: "ping", t: now() }); }

  check() {
    if (now() - this.heardAt > SILENCE_MS) return this.end();
    if (this.greeted) this.ping();
  }

  send(message) { if (this.socket.readyState === WebSocket.OPEN) this.socket.send(JSON.stringify(message)); }

  end() { const { on } = this; this.close(); on?.lost(this.greeted === true); }

  close() { clearInterval(this.timer); this.on = null; this.socket.onmessage = this.socket.onclose = null; this.socket.close(); }
}

/** Header and payload of a picture. */
export function takeApart(data) {
  const size = new DataView(data).getUint32(0);
  return [JSON.parse(decodeText(new Uint8Array(data, 4, size))), new Uint8Array(data, 4 + size)];
}

export function once(call) { let due = true; return () => { if (due) { due = false; call(); } }; }
