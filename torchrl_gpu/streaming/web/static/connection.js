// Connecting, losing the connection, connecting again.

import { $, say, setText } from "./dom.js";
import { changed, link, now, rewrite, traffic, view } from "./state.js";
import { address, reasonOf, within } from "./http.js";
import { LADDER, listTransports, TRANSPORTS } from "./transports.js";
import { listCommands, listStreams } from "./lists.js";

export const RETRY_MS = [500, 1000, 2000, 4000, 8000, 15000];

let turn = 0, socketFailures = 0, retryTimer = 0;
let rung = 0; // of the ladder, when the choice is left to the page

function choose() {
  if (view.wish !== "auto") return view.wish;
  while (TRANSPORTS[LADDER[rung]].lacking()) rung++;
  return LADDER[rung];
}

/** Goes on by another transport, and says why. */
export function stepDown(why, to) {
  if (view.wish !== "auto" || to === "auto") say(why + ".");
  if (to !== "auto") rung = Math.max(rung, LADDER.indexOf(to));
  view.wish = "auto";
  connect();
}

export async function connect() {
  const mine = ++turn;
  clearTimeout(retryTimer); link.retryAt = 0;
  link.feed?.close(); link.feed = null;
  link.state = "wait"; link.trouble = "";
  traffic.clear();
  let answer;
  try { answer = await within(6000, null, (signal) => fetch(address("streams"), { signal, cache: "no-store" })); }
  catch { return mine === turn && lost("The server does not answer"); }
  if (mine !== turn) return;
  if (answer.status === 401) return ask();
  if (!answer.ok) return lost(await reasonOf(answer));
  const streams = await answer.json().catch(() => []);
  if (mine !== turn) return;
  $("gate").hidden = true; $("body").hidden = false;
  listStreams(streams);
  view.using = choose();
  if (TRANSPORTS[view.using].onlyWatches) forgetRun();
  link.feed = TRANSPORTS[view.using].make();
  listTransports();
  changed();
}

/** Nothing tells the state of the run any more: what was told of it would stay, however it changes. */
export function forgetRun() { view.role = "view"; view.state = {}; listCommands(); }

export function connected() { link.failures = socketFailures = 0; link.state = "live"; link.trouble = ""; changed(); }

/** The connection is gone, or did not come about. A socket that is refused twice while plain HTTP works is not tried again. */
export function lost(why) {
  if (link.feed && TRANSPORTS[view.using].onlyWatches && view.wish === "auto") rung = socketFailures = 0; // what refused it may be gone
  link.feed?.close(); link.feed = null;
  if (why === "socket") explainRefusal();
  if (why === "socket" && ++socketFailures >= 2 && view.wish === "auto" && rung < 2) return stepDown("", "mjpeg");
  const wait = RETRY_MS[Math.min(link.failures++, RETRY_MS.length - 1)] * (.8 + .4 * Math.random());
  link.state = "lost"; link.trouble = why === "socket" ? "The WebSocket was refused" : why;
  link.retryAt = now() + wait;
  clearTimeout(retryTimer);
  retryTimer = setTimeout(connect, wait);
  changed();
}

/** Says why a WebSocket was refused, where it was for the page's origin: a browser tells only of requests that it posts. */
async function explainRefusal() {
  const body = { method: "POST", headers: { "Content-Type": "application/json" }, body: "{}" };
  const answer = await fetch(address("login"), body).catch(() => null);
  if (answer?.status === 403) say(`${await reasonOf(answer)}.`);
}

export function soon() { if (link.state === "lost") { link.failures = 0; connect(); } }

/** Shows the form for the token instead of the page. */
export function ask() {
  turn++;
  clearTimeout(retryTimer);
  link.feed?.close(); link.feed = null;
  link.state = "ask"; $("gate").hidden = false; $("body").hidden = true;
  $("token").focus();
  changed();
}

export async function login(event) {
  event.preventDefault();
  const token = $("token").value;
  let answer;
  try {
    answer = await fetch(address("login"), { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ token }) });
  } catch { return setText($("wrong"), "The server does not answer."); }
  if (answer.ok) { $("token").value = ""; setText($("wrong"), ""); return connect(); }
  const known = { 401: "This is not the token.", 429: "Too many attempts. Try again in a minute." };
  setText($("wrong"), known[answer.status] ?? `${await reasonOf(answer)}.`);
  $("token").select();
}

/** Takes another transport from now on, or leaves the choice to the page. */
export function chooseTransport(wish) {
  view.wish = wish; rung = 0; link.failures = socketFailures = 0;
  rewrite("transport", wish === "auto" ? "" : wish);
  connect();
}
