// Pictures over the WebSocket: JPEG, or H.264 through WebCodecs.

import { clock, now, stopped, traffic, view } from "./state.js";
import { Stills, Video } from "./decoders.js";
import { policy } from "./policy.js";
import { lackingH264, TRANSPORTS } from "./transports.js";
import { connected, lost, stepDown } from "./connection.js";
import { Channel, once, takeApart } from "./channel.js";

/** Pictures over the WebSocket, each acknowledged once it is painted. */
class SocketFeed {
  replays = true; commands = true;

  constructor(name) {
    this.codec = name; this.stills = new Stills();
    this.video = new Video(() => this.broken());
    this.channel = new Channel({
      hello: (message) => this.greet(message), frame: (data) => this.receive(data), lost: (greeted) => lost(greeted ? "" : "socket"),
    });
  }

  greet(message) {
    if (!(message.transports ?? ["jpeg"]).includes(this.codec)) return stepDown("The server has no H.264", "jpeg");
    clock.reset();
    connected();
    if (stopped()) this.hold();
    if (view.stream !== null) this.watch();
  }

  /** Begins again at a key frame; whatever breaks twice within ten seconds is left to JPEG. */
  broken() {
    if (now() - (this.brokenAt ?? -Infinity) < 10000) return stepDown("The browser cannot decode this H.264", "jpeg");
    this.brokenAt = now();
    this.watch();
  }

  receive(data) {
    const [header, bytes] = takeApart(data);
    const ack = () => this.channel.send({ type: "ack", seq: header.seq });
    traffic.add(data.byteLength);
    if (header.stream !== view.stream) return policy.see(header, bytes).finally(ack);
    const decoder = header.codec === "h264" ? this.video : this.stills;
    decoder.show(header, bytes, once(ack)).catch(() => {});
  }

  watch() { this.channel.send({ type: "watch", stream: view.stream, codec: this.codec, fps: view.limit, beside: policy.stream() }); }
  hold() { this.channel.send({ type: "pause", on: stopped() }); }
  replay() { this.channel.send({ type: "replay" }); }
  command(name, value) { this.channel.send({ type: "command", name, value, stream: view.stream }); }
  close() { this.channel.close(); this.stills.close(); this.video.close(); }
}

TRANSPORTS.h264 = { name: "H.264", make: () => new SocketFeed("h264"), lacking: lackingH264 };
TRANSPORTS.jpeg = { name: "JPEG", make: () => new SocketFeed("jpeg"), lacking: () => "" };
