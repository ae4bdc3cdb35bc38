// The curves of the run, which the server keeps.

import { $, setText } from "./dom.js";
import { figure, whole } from "./format.js";
import { isHeld, kept, view } from "./state.js";
import { boundsOf, dot, nearest, penOf, smooth, stroke } from "./plots.js";

const MOST_POINTS = 2000;  // of a curve, here
const FIRST_POINTS_MS = 1500; // in which a server that has curves sends the first of them

/** One curve: where it is read, its least and greatest value, its line. */
class CurvePlot {
  constructor(name) {
    this.name = name;
    this.figure = document.createElement("figure");
    this.figure.className = "plot";
    this.figure.innerHTML = '<figcaption><span></span><b></b><small></small></figcaption><div class="graph"><div class="ends"><span></span><span></span></div><canvas tabindex="0" role="slider"></canvas></div>';
    [this.title, this.reading, this.at] = this.figure.querySelector("figcaption").children;
    [this.high, this.low] = this.figure.querySelector(".ends").children;
    this.canvas = this.figure.querySelector("canvas");
    setText(this.title, name); this.title.title = name;
    this.canvas.setAttribute("aria-label", name);
    this.canvas.onpointermove = this.canvas.onpointerdown = (event) => curves.point(this.stepAt(event.offsetX));
    this.canvas.onpointerleave = () => curves.point(null);
    this.canvas.onblur = () => curves.point(null);
    this.canvas.onkeydown = (event) => this.press(event);
  }

  get curve() { return curves.all.get(this.name); }

  stepAt(x) { const [first, last] = curves.span(); return first + (x - 4) / Math.max(this.canvas.clientWidth - 8, 1) * (last - first); }

  /** Arrows go from point to point, so that a curve can be read without a pointer. */
  press(event) {
    const { steps } = this.curve, last = steps.length - 1, here = curves.pointer === null ? last : nearest(steps, curves.pointer);
    const there = { ArrowLeft: here - 1, ArrowDown: here - 1, ArrowRight: here + 1, ArrowUp: here + 1, PageDown: here - 20, PageUp: here + 20, Home: 0, End: last }[event.key];
    if (event.key === "Escape") curves.point(null);
    if (there === undefined) return;
    event.preventDefault();
    curves.point(steps[Math.min(Math.max(there, 0), last)]);
  }

  draw() {
    const { steps, values } = this.curve, reads = curves.readsAt();
    const i = reads === null ? steps.length - 1 : nearest(steps, reads), text = figure(values[i]);
    const [low, high] = boundsOf(values);
    setText(this.reading, text); setText(this.at, reads === null ? "" : `${curves.axis()} ${whole.format(steps[i])}`);
    setText(this.high, figure(high)); setText(this.low, figure(low));
    for (const [key, value] of [["min", steps[0]], ["max", steps.at(-1)], ["now", steps[i]], ["text", `${text} at ${curves.axis()} ${steps[i]}`]]) this.canvas.setAttribute("aria-value" + key, value);
    this.drawLine(steps, values, low, high, i, reads !== null);
  }

  drawLine(steps, values, low, high, i, marked) {
    const pen = penOf(this.canvas);
    if (!pen) return;
    const { g, width, height, color } = pen, [first, last] = curves.span();
    const x = (step) => 4 + (step - first) / (last - first) * (width - 8), y = (value) => height - 4 - (value - low) / (high - low) * (height - 8);
    g.fillStyle = color("line");
    for (const part of [0, .5, 1]) g.fillRect(0, Math.round(4 + part * (height - 8)), width, 1);
    const rough = steps.length > 120;
    g.lineWidth = 1.5; g.lineJoin = "round"; g.strokeStyle = color("accent");
    g.globalAlpha = rough ? .35 : 1; stroke(g, steps.map(x), values.map(y));
    g.globalAlpha = 1;
    if (rough) { g.lineWidth = 2; stroke(g, steps.map(x), smooth(values).map(y)); }
    if (marked) { g.fillStyle = color("faint"); g.fillRect(Math.round(x(steps[i])), 0, 1, height); }
    dot(g, x(steps[i]), y(values[i]), 3.5, color("accent"));
  }
}

const FAVOURITES = [/^(?!val|eval|test).*(return|reward|score|success|utilization)$/i, /^(val|eval|test)\w*\//i, /(^|[/_])loss$/i];

export const curves = {
  all: new Map(), plots: new Map(), chosen: readChosen(), pointer: null, stale: false, drawn: "", outdated: 0,

  /** What there is may be of another run: it goes when the first points come, or when none come for a while. */
  expectNew() {
    clearTimeout(this.outdated);
    this.outdated = setTimeout(() => this.take([]), FIRST_POINTS_MS);
  },

  /** Adds points: in place of what there is from their first step on, or of all that there is. */
  take(list) {
    if (this.outdated) { clearTimeout(this.outdated); this.outdated = 0; this.all.clear(); }
    for (const { name, steps, values, whole } of list) {
      const old = whole ? null : this.all.get(name);
      const kept = old ? old.steps.findIndex((step) => step >= steps[0]) : 0, end = kept < 0 ? old.steps.length : kept;
      const joined = { steps: [...(old?.steps.slice(0, end) ?? []), ...steps], values: [...(old?.values.slice(0, end) ?? []), ...values] };
      const thin = (each, i) => i % 2 === 0 || i === joined.steps.length - 1;
      this.all.set(name, joined.steps.length > MOST_POINTS ? { steps: joined.steps.filter(thin), values: joined.values.filter(thin) } : joined);
    }
    this.stale = true;
  },

  axis() { return typeof view.state.curve_axis === "string" ? view.state.curve_axis : "step"; },

  /** Names that are shown: those that were chosen, or else a return, an evaluation and a loss. */
  shown() {
    const names = [...this.all.keys()];
    if (this.chosen) return names.filter((name) => this.chosen.includes(name));
    const found = FAVOURITES.map((kind) => names.find((name) => kind.test(name))).filter(Boolean);
    return [...new Set(found.length ? found : names)].slice(0, 3);
  },

  /** First and last step of what is shown. */
  span() {
    const shown = this.shown().map((name) => this.all.get(name).steps);
    const [first, last] = [Math.min(...shown.map((steps) => steps[0])), Math.max(...shown.map((steps) => steps.at(-1)))];
    return first < last ? [first, last] : [first - 1, last + 1];
  },

  /** The step at which curves are read: under the pointer, or that of a picture of before; null for the newest values. */
  readsAt() {
    const step = view.header?.meta?.step;
    if (this.pointer !== null) return this.pointer;
    return (isHeld() || view.replay) && this.axis() === "step" && typeof step === "number" ? step : null;
  },

  point(step) { this.pointer = step; this.stale = true; this.render(); },

  render() {
    const shown = `${this.readsAt()} ${$("curves").clientWidth} ${this.axis()}`;
    if (!this.stale && shown === this.drawn) return;
    this.stale = false; this.drawn = shown;
    $("curves").hidden = this.all.size === 0;
    if (!this.all.size) return;
    const names = this.shown();
    for (const [name, plot] of this.plots) if (!names.includes(name)) { plot.figure.remove(); this.plots.delete(name); }
    names.forEach((name, i) => {
      const plot = this.plots.get(name) ?? new CurvePlot(name);
      this.plots.set(name, plot);
      if ($("plots").children[i] !== plot.figure) $("plots").insertBefore(plot.figure, $("plots").children[i] ?? null);
    });
    this.renderAxis(names);
    for (const plot of this.plots.values()) plot.draw();
    if (!$("choices").hidden) this.listChoices();
  },

  renderAxis(names) {
    $("axis").hidden = names.length === 0;
    if (!names.length) return;
    const [first, last] = this.span().map((step) => whole.format(Math.max(step, 0))), parts = $("axis").children;
    setText(parts[0], first); setText(parts[1], this.axis()); setText(parts[2], last);
  },

  toggleChoices() {
    const open = $("choices").hidden;
    $("choices").hidden = !open;
    $("choose").setAttribute("aria-expanded", open);
    setText($("choose"), open ? "Done" : "Choose");
    if (open) this.listChoices();
    if (open && matchMedia("(hover: hover)").matches) $("filter").focus(); // where that brings up no keyboard
  },

  /** The list to choose from, in groups by what stands before the slash. */
  listChoices() {
    const wanted = $("filter").value.trim().toLowerCase(), names = [...this.all.keys()].filter((name) => name.toLowerCase().includes(wanted));
    const key = JSON.stringify([names, this.shown()]);
    if ($("list").dataset.shown === key) return;
    $("list").dataset.shown = key;
    const groups = Map.groupBy ? Map.groupBy(names, groupOf) : names.reduce((map, name) => map.set(groupOf(name), [...(map.get(groupOf(name)) ?? []), name]), new Map());
    const focused = document.activeElement?.value;
    $("list").replaceChildren(...[...groups].map(([group, members]) => this.choiceGroup(group, members)));
    if (focused) [...$("list").querySelectorAll("input")].find((one) => one.value === focused)?.focus();
  },

  choiceGroup(group, members) {
    const box = document.createElement("fieldset"), legend = document.createElement("legend");
    legend.textContent = group;
    box.append(legend, ...members.map((name) => {
      const label = document.createElement("label"), input = document.createElement("input"), text = document.createElement("span");
      input.type = "checkbox"; input.value = name; input.checked = this.shown().includes(name);
      input.onchange = () => this.choose(name, input.checked);
      text.textContent = group === "" ? name : name.slice(group.length + 1);
      label.append(input, text);
      return label;
    }));
    return box;
  },

  choose(name, on) {
    this.chosen = on ? [...this.shown(), name] : this.shown().filter((one) => one !== name);
    kept.set("curves", JSON.stringify(this.chosen));
    this.stale = true;
    this.render();
  },
};

const groupOf = (name) => (name.includes("/") ? name.slice(0, name.indexOf("/")) : "");

/** What was chosen on an earlier visit; null where nothing was. */
function readChosen() {
  try { const list = JSON.parse(kept.get("curves")); return Array.isArray(list) ? list.filter((one) => typeof one === "string") : null; }
  catch { return null; }
}
