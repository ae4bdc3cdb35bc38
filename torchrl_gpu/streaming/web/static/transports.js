// Transports: a feed adds itself here.

import { $ } from "./dom.js";
import { view } from "./state.js";

/** By name: what the page calls it, what makes its feed, and why it cannot be had. */
export const TRANSPORTS = {};

export const LADDER = ["h264", "jpeg", "mjpeg", "snapshot"];
let decodes = "VideoDecoder" in window;

export function lackingH264() {
  if (!isSecureContext) return "needs https or localhost";
  return decodes ? "" : "not in this browser";
}

export async function tryDecoder() {
  if (!decodes) return;
  try { decodes = (await VideoDecoder.isConfigSupported({ codec: "avc1.42E01F", optimizeForLatency: true })).supported; }
  catch { decodes = false; }
}

export function listTransports() {
  const select = $("transport");
  const auto = view.wish === "auto" && view.using ? `Auto (${TRANSPORTS[view.using].name})` : "Auto";
  const options = [["auto", auto, ""], ...Object.entries(TRANSPORTS).map(([key, one]) => [key, one.name, one.lacking()])];
  select.replaceChildren(...options.map(([key, name, lacking]) => {
    const option = new Option(lacking ? `${name}: ${lacking}` : name, key, false, key === view.wish);
    option.disabled = lacking !== "";
    return option;
  }));
}

export function listLimits() {
  const rates = [...new Set([30, 15, 5, 1, view.limit].filter(Boolean))].sort((a, b) => b - a);
  $("limit").replaceChildren(new Option("Full", ""), ...rates.map((rate) => new Option(`At most ${rate} fps`, rate, false, rate === view.limit)));
}
