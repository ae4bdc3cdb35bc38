// Figures of the picture that is shown, with their course over the pictures that are kept.

import { $, setText } from "./dom.js";
import { large, percent, short, twoPlaces } from "./format.js";
import { view } from "./state.js";
import { picture } from "./picture.js";
import { boundsOf, dot, penOf } from "./plots.js";
import { past } from "./past.js";

/** A figure of the picture that is shown, with its course over the pictures that are kept. */
class Metric {
  stale = true; drawn = ""; breaks = true;

  constructor(name, format, range) { this.panel = $(name); this.name = name; this.format = format; this.range = range; }

  valueOf(header) { const value = header?.meta?.[this.name]; return typeof value === "number" ? value : null; }

  text(value) { return this.format(value); }

  /** Whether it shows this value of the metadata. */
  tells(name, value) { return name === this.name && typeof value === "number"; }

  render() {
    const value = this.valueOf(view.header);
    this.panel.hidden = value === null;
    if (value === null) return;
    setText(this.panel.querySelector("b"), this.text(value));
    const shown = `${past.turn} ${past.kept.at(-1)?.at} ${past.here()} ${view.header.seq} ${this.panel.clientWidth}`;
    if (this.stale || shown !== this.drawn) { this.drawn = shown; this.stale = false; this.draw(); }
  }

  /** A line that breaks where an episode ends; the dot is the picture that is shown. */
  draw() {
    const pen = penOf(this.panel.querySelector("canvas"));
    const points = past.kept.map((one) => [one.at, this.valueOf(one.header), one.header.meta?.episode]).filter(([, value]) => value !== null);
    if (!pen || points.length < 2) return;
    const { g, width, height, color } = pen, [low, high] = boundsOf(points.map((one) => one[1]), this.range);
    const begin = points[0][0], span = Math.max(points.at(-1)[0] - begin, 1);
    const x = (at) => 3 + (at - begin) / span * (width - 6), y = (value) => height - 3 - (value - low) / (high - low) * (height - 6);
    g.strokeStyle = color("faint"); g.lineWidth = 1.25; g.lineJoin = g.lineCap = "round"; g.beginPath();
    points.forEach(([at, value, episode], i) => {
      if (!i || (this.breaks && episode !== points[i - 1][2])) g.moveTo(x(at), y(value));
      g.lineTo(x(at), y(value));
    });
    g.stroke();
    const here = past.kept[past.here()], value = this.valueOf(here?.header);
    if (here && value !== null) dot(g, x(here.at), y(value), 3, color("accent"));
  }
}

/** Steps, and how many there have been in a second. */
class Steps extends Metric {
  breaks = false;

  text(value) {
    const counted = past.kept.filter((one) => this.valueOf(one.header) !== null), newest = counted.at(-1);
    const before = counted.find((one) => newest.at - one.at < 10000);
    const steps = newest ? this.valueOf(newest.header) - this.valueOf(before.header) : 0, seconds = newest ? (newest.at - before.at) / 1000 : 0;
    const isPast = !picture.isFresh() || view.state.paused === true; // a rate is one of now
    return isPast || seconds < 2 || steps <= 0 ? large(value) : `${large(value)} · ${short.format(Math.round(steps / seconds * 10) / 10)}/s`;
  }
}

export const metrics = [new Metric("return", twoPlaces), new Metric("utilization", (value) => percent.format(value), [0, 1]), new Steps("step", large)];
