// The picture: painting it, its age, its place on the page.

import { $, setStyle } from "./dom.js";
import { attention, clock, isHeld, isLive, now, view } from "./state.js";

const STALL_MS = 2500;     // a picture that stays for so long is called waiting
const SAME_S = .001;       // two captures that are no further apart are one: times of WebRTC are counted in ticks
const AGED_MS = 1000;      // from then on the age is that of the picture that stays

export const picture = {
  canvas: $("picture"), context: $("picture").getContext("2d", { alpha: false }), shownAt: 0, attendedAt: 0, ages: [], gaps: [], any: false, turn: 0, onCame: null,

  /** Shows an image or a decoded frame that has come; `jpeg` is its file, where there is one. */
  paint(source, header, jpeg) {
    if (isHeld()) return;
    this.draw(source, header);
    this.came(header, jpeg);
  },

  draw(source, { width, height }) {
    if (this.canvas.width !== width || this.canvas.height !== height) {
      this.canvas.width = width; this.canvas.height = height;
    }
    this.context.drawImage(source, 0, 0, width, height, 0, 0, width, height); // coded pictures may be a row or column larger
  },

  /** A picture has come and stands on the page. */
  came(header, jpeg) {
    this.turn++; // a kept picture that is still being decoded comes too late
    if (this.isNew(header)) this.note(header);
    this.shown(header);
    if (!header.replay) this.onCame?.(header, jpeg);
  },

  /** Whether a picture is another one than that on the page: a server sends the newest again, also of a source that hangs. */
  isNew(header) { return !this.any || header.replay || !isSame(header, view.header); },

  /** Takes down when a new picture came, how long that took, and how old it is. */
  note(header) {
    const attended = attention.ms(), server = clock.server();
    if (this.any && !header.replay) this.gaps = [...this.gaps.slice(-4), attended - this.attendedAt];
    this.shownAt = now(); this.attendedAt = attended;
    if (server !== null && !header.replay && header.captured) this.aged(server - header.captured * 1000);
  },

  /** What the page says is from now on said of this picture. */
  shown(header) {
    this.any = true;
    view.header = header; view.replay = header.replay === true;
    fit(header.width, header.height);
    document.dispatchEvent(new CustomEvent("painted", { detail: header }));
  },

  aged(age) { this.ages = [...this.ages.slice(-29), Math.max(age, 0)]; },

  /** Milliseconds from capture to paint, the median of the last second; from capture until now once pictures stay away. */
  age() {
    const server = clock.server();
    if ((view.replay || isHeld()) && server !== null && view.header?.captured) return server - view.header.captured * 1000;
    if (!this.ages.length) return null;
    const since = now() - this.shownAt, sorted = [...this.ages].sort((a, b) => a - b);
    return since > AGED_MS ? this.ages.at(-1) + since : sorted[sorted.length >> 1];
  },

  /** Milliseconds after which a picture that stays is called waiting: longer where pictures are as rare as that. */
  patience() { return Math.max(STALL_MS, view.limit ? 2500 / view.limit : 0, 2.5 * Math.max(0, ...this.gaps)); },

  /** True while pictures come as often as they did: not held, replayed or of a connection that is gone. */
  isFresh() { return isLive() && this.any && !isHeld() && !view.replay && now() - this.shownAt <= this.patience(); },

  /** True for a moment after the page looks again, in which the picture that stays says nothing of the source. */
  isAwaited() { return now() - view.resumedAt <= STALL_MS; },

  forget() { this.ages = []; this.gaps = []; this.any = false; view.header = null; view.replay = false; },
};

/** Whether two headers are of one capture. */
function isSame(one, other) {
  return typeof one.captured === "number" && Math.abs(one.captured - (other?.captured ?? Infinity)) < SAME_S && !other.replay;
}

export const filled = () => document.fullscreenElement === $("viewer") || $("viewer").classList.contains("filled");

/** Fits the frame into the stage, keeping its shape; far enlarged pictures keep their pixels square. */
export function fit(width, height) {
  const narrow = matchMedia("(max-width: 860px)").matches && !filled();
  const stage = $("stage"), frame = $("frame"), bar = $("bar"), source = $("source");
  const room = narrow ? innerHeight * .62 : $("viewer").clientHeight - (filled() ? 0 : bar.offsetHeight + source.offsetHeight + 4);
  const scale = Math.min(stage.clientWidth / width, room / height);
  setStyle(frame, "width", Math.floor(width * scale) + "px");
  setStyle(frame, "height", Math.floor(height * scale) + "px");
  frame.classList.toggle("sharp", scale * devicePixelRatio >= 3);
  for (const row of [bar, source]) setStyle(row, "maxWidth", narrow || filled() ? "" : Math.max(width * scale, 620) + "px");
}
