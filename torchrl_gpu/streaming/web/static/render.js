// Drawing of everything beside the picture.

import { $, setDisabled, setIcon, setText } from "./dom.js";
import { ageKind, ageText, bitsText, distinct, factText, whole, worded } from "./format.js";
import { isHeld, isLive, link, now, traffic, view } from "./state.js";
import { picture } from "./picture.js";
import { past } from "./past.js";
import { title, watchedMember } from "./names.js";
import { metrics } from "./metrics.js";
import { curves } from "./curves.js";
import { policy } from "./policy.js";
import { soon } from "./connection.js";

const SHOWN_ELSEWHERE = new Set(["commands", "curve_axis", "loading"]); // of the state

/** Whether a value of the state is told by something else on the page, or by its absence. */
const isKnown = (key, value) => SHOWN_ELSEWHERE.has(key) || (key === "paused" && value === false);

/** What else the picture tells, and then the program, by name. A picture's own value goes before one of the program. */
function factsNow() {
  const older = isHeld() || view.replay, meta = view.header?.meta ?? {};
  const ofPicture = Object.entries(meta).filter(([key, value]) => !metrics.some((one) => one.tells(key, value)));
  const ofRun = Object.entries(view.state).filter(([key, value]) => !(key in meta) && !isKnown(key, value));
  const names = distinct([...ofPicture, ...ofRun].map(([key]) => key), worded);
  const rows = [
    ...ofPicture.map(([key, value]) => [key, names(key), value]),
    ...ofRun.map(([key, value]) => [key, names(key) + (older ? " (now)" : ""), value]), // beside a picture of another moment
  ];
  if (view.header?.left_out) rows.push(["left_out", "Left out", `${view.header.left_out} values: too long for this transport`]);
  return rows.filter(([key, , value]) => value !== null && !policy.tells(key, value));
}

/** Lists what else the picture and the program tell; how much that is. */
function listFacts() {
  const entries = factsNow();
  const box = $("facts");
  while (box.children.length > entries.length) box.lastChild.remove();
  entries.forEach(([, name, value], i) => {
    const row = box.children[i] ?? box.appendChild(document.createElement("div"));
    if (!row.firstChild) row.append(document.createElement("dt"), document.createElement("dd"));
    setText(row.firstChild, name); setText(row.lastChild, factText(value));
  });
  return entries.length;
}

function stateText() {
  if (link.state === "ask") return ["wait", "Token needed"];
  if (link.state === "lost") return ["lost", link.retryAt ? `Reconnecting in ${Math.max(1, Math.ceil((link.retryAt - now()) / 1000))} s` : "Not connected"];
  if (link.state === "wait") return ["wait", link.failures ? "Reconnecting" : "Connecting"];
  if (isHeld()) return ["idle", "Held"];
  if (view.replay) return ["replay", "Replay"];
  if (view.state.paused === true) return ["idle", "Run paused"];
  if (!picture.any) return ["wait", "Waiting for a picture"];
  if (!picture.isFresh()) return ["wait", picture.isAwaited() ? "Waiting for a picture" : "No new pictures"];
  return ["live", "Live"];
}

export function render() {
  const [kind, text] = stateText();
  $("state").dataset.kind = kind;
  setText($("state").lastChild, text);
  setText($("heard"), text.replace(/ in \d+ s$/, "")); // not the seconds, which would be read out one by one
  document.title = `${text} · ${title()} · torchrl_gpu`;
  renderNote();
  const age = picture.age();
  setText($("age"), ageText(age)); $("age").dataset.kind = view.replay || isHeld() ? "" : ageKind(age);
  const { rate, bits } = isHeld() ? { rate: 0, bits: 0 } : traffic.recent();
  setText($("rate"), rate ? `${rate.toFixed(rate < 9.95 ? 1 : 0)} fps` : "–");
  setText($("bandwidth"), bitsText(bits));
  setText($("dropped"), view.header?.dropped === undefined ? "–" : whole.format(view.header.dropped));
  setText($("size"), view.header ? `${view.header.width} × ${view.header.height}` : "–");
  const listed = view.streams.find((one) => one.name === view.stream)?.watchers ?? 0;
  const watching = !isLive() ? 0 : Math.max(listed, !isHeld() && view.stream !== null ? 1 : 0); // the list may be older than we are
  setText($("watching"), watching ? `${watching} viewer${watching === 1 ? "" : "s"}` : "–");
  picture.canvas.setAttribute("aria-label", `${isHeld() ? "Held" : "Live"} picture: ${title()}`);
  renderTime(age);
  renderButtons();
  for (const metric of metrics) metric.render();
  policy.render();
  const facts = listFacts();
  $("episode").hidden = facts === 0 && metrics.every((metric) => metric.panel.hidden);
  curves.render();
}

/** The slider over the pictures that are kept, and what it stands at. */
function renderTime(age) {
  const slider = $("past"), last = past.kept.length - 1, here = past.here();
  slider.dataset.pictures = last + 1;
  slider.max = Math.max(last, 1);
  slider.disabled = last < 1;
  slider.value = last < 1 ? 1 : here;
  const older = isHeld() || view.replay, text = older && age !== null ? `−${ageText(age)}` : older ? "Held" : isLive() ? "Live" : "Newest";
  setText($("when"), text); $("when").dataset.kind = older ? "held" : "live";
  slider.setAttribute("aria-valuetext", older ? `${ageText(age)} ago` : text);
  $("hold").setAttribute("aria-pressed", isHeld());
  setText($("hold").lastChild, isHeld() ? "Live" : "Hold");
  setIcon($("hold"), isHeld() ? "play" : "pause");
  $("mark").hidden = !older || !picture.any;
  setText($("mark"), isHeld() ? "Held" : "Replay");
}

/** What would do nothing cannot be pressed. */
function renderButtons() {
  const off = !isLive();
  $("hold").disabled = !isHeld() && !picture.any;
  $("replay").disabled = off || !link.feed?.replays || !picture.any;
  $("save").disabled = $("full").disabled = !picture.any;
  for (const button of $("bar").parentElement.querySelectorAll("#environments button, #environments input, #overlays button")) setDisabled(button, off);
  for (const button of document.querySelectorAll("#streams button")) setDisabled(button, off);
  for (const button of document.querySelectorAll("#commands button")) setDisabled(button, off || !link.feed?.commands);
  if (!off) {
    const { number, count } = watchedMember() ?? { number: 0, count: 1 };
    setDisabled($("previous"), number <= 0);
    setDisabled($("next"), number >= count - 1);
  }
}

/** What stands where the picture will be, and over one that is no longer live. */
function renderNote() {
  const gone = link.state === "lost";
  $("frame").classList.toggle("dim", gone && picture.any && !isHeld());
  const loading = typeof view.state.loading === "string" ? view.state.loading : "";
  const lines = isHeld() ? null : gone ? ["Connection lost", link.trouble || "The picture comes back by itself", true]
    : link.state === "wait" && !picture.any ? ["Connecting", "", false]
    : picture.any ? null : view.state.loading ? ["Loading", loading, false] : ["Waiting for a picture", view.stream === null ? "There is no stream yet" : `Nothing has come from ${title()} yet`, false];
  const note = $("note"), shown = JSON.stringify(lines);
  note.hidden = !lines;
  note.classList.toggle("cover", !picture.any);
  if (!lines || note.dataset.shown === shown) return;
  note.dataset.shown = shown;
  const head = document.createElement("b"), text = document.createElement("span");
  head.textContent = lines[0]; text.textContent = lines[1];
  const box = document.createElement("div");
  box.append(head, text);
  note.replaceChildren(box);
  if (lines[2]) {
    const button = document.createElement("button");
    button.type = "button"; button.className = "push"; button.textContent = "Try now"; button.onclick = soon;
    box.append(button);
  }
}

document.addEventListener("changed", render);
