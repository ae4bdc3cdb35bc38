// Theme, full screen, saving, keys.

import { $, setIcon } from "./dom.js";
import { attention, kept, link, now, traffic, view } from "./state.js";
import { filled, fit, picture } from "./picture.js";
import { replay, showAfter, showBefore, toggleHold } from "./past.js";
import { tabs, withOverlay } from "./names.js";
import { metrics } from "./metrics.js";
import { curves } from "./curves.js";
import { nextOverlay, watch } from "./lists.js";
import { soon } from "./connection.js";

export function setHidden() {
  attention.ms(); // up to here, before it stops or begins to count
  view.hidden = document.hidden;
  link.feed?.hold();
  if (!view.hidden) { view.resumedAt = now(); traffic.clear(); soon(); }
}

export function setTheme(theme, keep) {
  document.documentElement.dataset.theme = theme;
  setIcon($("theme"), theme === "dark" ? "sun" : "moon");
  $("theme").setAttribute("aria-label", theme === "dark" ? "Light theme" : "Dark theme");
  for (const metric of metrics) metric.stale = true;
  curves.stale = true;
  if (keep) kept.set("theme", theme);
}

export const preferred = matchMedia("(prefers-color-scheme: dark)");

/** Full screen where the browser has it for a picture (an iPhone has not), else the whole window. */
export function toggleFull() {
  const viewer = $("viewer");
  if (document.fullscreenElement) return document.exitFullscreen();
  if (viewer.requestFullscreen && document.fullscreenEnabled) return viewer.requestFullscreen().catch(fillWindow);
  return fillWindow();
}

function fillWindow() { $("viewer").classList.toggle("filled"); fullChanged(); }

export function fullChanged() {
  $("full").setAttribute("aria-pressed", filled());
  if (view.header) fit(view.header.width, view.header.height);
  stir();
}

let idleTimer = 0;
/** In full screen the buttons go away when the pointer rests. */
export function stir() {
  $("viewer").classList.remove("idle");
  clearTimeout(idleTimer);
  if (filled()) idleTimer = setTimeout(() => $("viewer").classList.add("idle"), 2500);
}

export function save() {
  const video = $("video"), canvas = document.createElement("canvas");
  const source = video.hidden ? picture.canvas : video;
  canvas.width = source.videoWidth || source.width; canvas.height = source.videoHeight || source.height;
  canvas.getContext("2d").drawImage(source, 0, 0);
  const step = view.header?.meta?.step;
  canvas.toBlob((blob) => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(blob);
    link.download = `torchrl_gpu-${view.stream}${step === undefined ? "" : "-step" + step}.png`.replace(/[^\w.-]+/g, "_");
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  }, "image/png");
}

export const toggleTheme = () => setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark", true);

const KEYS = {
  " ": toggleHold, ArrowLeft: showBefore, ArrowRight: showAfter, r: replay, f: toggleFull, s: () => picture.any && save(), t: toggleTheme, o: nextOverlay,
  e: () => { if (!$("environments").hidden) $("number").select(); },
  "?": () => $("shortcuts").showModal(),
  Escape: () => $("viewer").classList.contains("filled") && fillWindow(),
};

export function pressed(event) {
  const slides = event.target.closest("input[type=range]") && !event.key.startsWith("Arrow"); // which has arrows of its own
  const busy = (event.target.closest("input, select, dialog, [role=slider]") && !slides) || (event.key === " " && event.target.closest("button"));
  if (busy || event.ctrlKey || event.metaKey || event.altKey || link.state === "ask") return;
  const stream = /^[1-9]$/.test(event.key) && tabs()[Number(event.key) - 1];
  const action = stream ? () => watch(withOverlay(stream)) : KEYS[event.key] ?? KEYS[event.key.toLowerCase()];
  if (action) { event.preventDefault(); action(); }
}
