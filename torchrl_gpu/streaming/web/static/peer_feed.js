// Pictures over WebRTC.

import { $, say } from "./dom.js";
import { changed, clock, isHeld, now, stopped, traffic, view } from "./state.js";
import { address, pause, reasonOf } from "./http.js";
import { picture } from "./picture.js";
import { policy } from "./policy.js";
import { TRANSPORTS } from "./transports.js";
import { ask, connected, forgetRun, lost, RETRY_MS, stepDown } from "./connection.js";
import { Channel, PING_MS, takeApart } from "./channel.js";

const TICKS = 2 ** 32;     // RTP timestamps wrap here, 90 of them to a millisecond

/** WebRTC: the picture as a video, its header now and then over a data channel, commands over the WebSocket. */
class PeerFeed {
  replays = false;

  constructor() {
    this.origin = null; this.last = null; this.over = false; this.losses = 0;
    this.openChannel();
    if (view.stream !== null) this.begin();
  }

  get commands() { return this.channel?.greeted === true; }

  openChannel() {
    const hello = () => { this.losses = 0; this.watchSeen(); changed(); };
    this.channel = new Channel({ hello, frame: (data) => this.receive(data), lost: () => this.reopenChannel() });
  }

  /** Pictures go on without the WebSocket; until it is back there are no commands. */
  reopenChannel() {
    this.channel = null;
    forgetRun();
    changed();
    this.reopening = setTimeout(() => this.openChannel(), RETRY_MS[Math.min(this.losses++, RETRY_MS.length - 1)]);
  }

  begin() { this.start().catch(() => this.fail()); }

  async start() {
    const peer = (this.peer = new RTCPeerConnection({ iceServers: [] }));
    const { receiver } = peer.addTransceiver("video", { direction: "recvonly" });
    if ("jitterBufferTarget" in receiver) receiver.jitterBufferTarget = 0;
    this.meta = peer.createDataChannel("meta", { maxRetransmits: 0 });
    this.meta.onmessage = (event) => this.told(JSON.parse(event.data));
    this.meta.onopen = () => { this.ping(); if (stopped()) this.hold(); };
    this.meta.onclose = () => this.fail();
    this.pings = setInterval(() => this.ping(), PING_MS);
    peer.ontrack = (event) => this.attach(event.track);
    peer.onconnectionstatechange = () => ["failed", "closed"].includes(peer.connectionState) && this.fail();
    this.late = setTimeout(() => picture.any || stopped() || this.fail(), 8000);
    await peer.setLocalDescription();
    await gathered(peer);
    const { sdp, type } = peer.localDescription;
    const answer = await fetch(address("webrtc/offer"), {
      method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ sdp, type, stream: view.stream, fps: view.limit }),
    });
    if (answer.status === 401) return ask();
    if (answer.status === 501) return this.fail("The server has no WebRTC: `torchrl-gpu doctor` there says how to bring its extra webrtc");
    if (!answer.ok) return this.fail(await reasonOf(answer));
    if (!this.over) await peer.setRemoteDescription(await answer.json());
  }

  attach(track) {
    const video = $("video");
    video.srcObject = new MediaStream([track]);
    video.hidden = false; picture.canvas.hidden = true;
    video.play().catch(() => {});
    const painted = (_, info) => { if (!this.over) { this.painted(info); video.requestVideoFrameCallback(painted); } };
    video.requestVideoFrameCallback?.(painted);
    connected();
  }

  painted(info) {
    this.worked = true;
    if (isHeld()) return;
    const captured = this.capture(info.rtpTimestamp);
    picture.came({ ...this.last, captured, width: info.width, height: info.height });
    traffic.add(0);
  }

  /** Server seconds at which a frame was captured: its RTP timestamp counts them in 90 kHz, from an origin that the server tells. */
  capture(rtp) {
    const server = clock.server();
    if (server === null || this.origin === null || rtp === undefined) return null;
    const behind = ((Math.round(server * 90) - (rtp - this.origin)) % TICKS + TICKS) % TICKS;
    return behind < TICKS / 2 ? (server - behind / 90) / 1000 : server / 1000;
  }

  told(message) {
    if (message.type === "pong") clock.ping(message.t, now(), message.now * 1000);
    else if (message.type === "error") say(message.message);
    else { this.origin = message.origin ?? this.origin; this.last = message; }
  }

  ping() { this.say({ type: "ping", t: now() }); }
  say(message) { if (this.meta?.readyState === "open") this.meta.send(JSON.stringify(message)); }
  watch() {
    if (!this.peer) return this.begin();
    this.last = null;
    this.say({ type: "watch", stream: view.stream, fps: view.limit });
    this.watchSeen();
  }

  /** What the policy saw comes over the WebSocket. */
  watchSeen() { if (policy.stream()) this.channel?.send({ type: "watch", stream: policy.stream(), codec: "jpeg", fps: Math.min(view.limit ?? 10, 10) }); }

  receive(data) {
    const [header, bytes] = takeApart(data);
    policy.see(header, bytes).finally(() => this.channel?.send({ type: "ack", seq: header.seq }));
  }

  hold() { this.say({ type: "pause", on: stopped() }); const video = $("video"); if (isHeld()) video.pause(); else video.play().catch(() => {}); }
  command(name, value) { this.channel?.send({ type: "command", name, value, stream: view.stream }); }

  /** What has worked is tried again; what has not is left. */
  fail(why) {
    if (this.over) return;
    if (this.worked) lost(""); else stepDown(why || "WebRTC does not get through here", "auto");
  }

  close() {
    this.over = true;
    clearTimeout(this.late); clearTimeout(this.reopening); clearInterval(this.pings);
    this.channel?.close(); this.peer?.close();
    const video = $("video");
    if (video.videoWidth && !video.hidden) { // the last picture stays
      picture.canvas.width = video.videoWidth; picture.canvas.height = video.videoHeight;
      picture.context.drawImage(video, 0, 0);
    }
    video.srcObject = null; video.hidden = true; picture.canvas.hidden = false;
  }
}

/** Candidates of this machine are found within milliseconds; the rest is not worth waiting for. */
function gathered(peer) {
  return Promise.race([pause(200), new Promise((done) => {
    const look = () => peer.iceGatheringState === "complete" && done();
    peer.onicegatheringstatechange = look; look();
  })]);
}

TRANSPORTS.webrtc = {
  name: "WebRTC", make: () => new PeerFeed(), lacking: () => ("RTCPeerConnection" in window ? "" : "not in this browser"),
};
