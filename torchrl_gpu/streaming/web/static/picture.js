// The picture: painting it, its age, its place on the page.

import { $, setStyle } from "./dom.js";
import { clock, isHeld, now, view } from "./state.js";

const STALL_MS = 2500;     // a picture that stays for so long is called waiting

export const picture = {
  canvas: $("picture"), context: $("picture").getContext("2d", { alpha: false }), shownAt: 0, ages: [], gaps: [], any: false, turn: 0, onCame: null,

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
    if (this.any && !header.replay) this.gaps = [...this.gaps.slice(-4), now() - this.shownAt];
    this.shownAt = now();
    const server = clock.server();
    if (server !== null && !header.replay && header.captured) this.aged(server - header.captured * 1000);
    this.shown(header);
    if (!header.replay) this.onCame?.(header, jpeg);
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
    return since > 1000 ? this.ages.at(-1) + since : sorted[sorted.length >> 1];
  },

  /** Milliseconds after which a picture that stays is called waiting: longer where pictures are as rare as that. */
  patience() { return Math.max(STALL_MS, view.limit ? 2500 / view.limit : 0, 2.5 * Math.max(0, ...this.gaps)); },

  forget() { this.ages = []; this.gaps = []; this.any = false; view.header = null; view.replay = false; },
};

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
