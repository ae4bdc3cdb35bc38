// What the server tells: streams, environments, overlays, commands.

import { $, say, setText } from "./dom.js";
import { distinct, whole, worded } from "./format.js";
import { changed, isHeld, isLive, link, rewrite, view } from "./state.js";
import { picture } from "./picture.js";
import { past } from "./past.js";
import { exists, memberOf, nameOf, overlayName, overlaysOf, partsOf, tabs, watchedMember, withOverlay } from "./names.js";
import { curves } from "./curves.js";
import { policy } from "./policy.js";

export function learn(message) {
  if (message.type === "hello") { view.role = message.role; view.state = message.state ?? {}; listStreams(message.streams ?? []); listCommands(); }
  else if (message.type === "streams") listStreams(message.streams);
  else if (message.type === "state") { const { type, state, ...rest } = message; view.state = { ...view.state, ...rest, ...state }; listCommands(); }
  else if (message.type === "curves") curves.take(message.curves);
  else if (message.type === "error") say(message.message);
}

/** Shows the list. The chosen stream is watched as soon as it is there, and the first one until then. */
export function listStreams(streams) {
  view.streams = streams;
  const stream = [view.chosen, view.stream].find(exists) ?? tabs()[0] ?? null;
  if (stream !== view.stream) turnTo(stream);
  else if (policy.stream() !== policy.asked) link.feed?.watch();
  policy.asked = policy.stream();
  const names = tabs(), base = stream === null ? null : partsOf(stream).base;
  $("streams").dataset.count = names.length;
  radios($("streams"), names, base, distinct(names, nameOf), (name) => watch(withOverlay(name)));
  listEnvironments(base);
  listOverlays(base);
}

function listEnvironments(base) {
  const member = base === null ? null : memberOf(base);
  $("environments").hidden = member === null;
  if (member !== null) {
    view.members.set(member.family, member.number);
    $("number").max = member.count - 1;
    if (document.activeElement !== $("number")) $("number").value = member.number;
    setText($("of"), `of ${whole.format(member.count)}`);
  }
  $("source").hidden = $("environments").hidden && $("overlaid").hidden;
}

function listOverlays(base) {
  const overlays = base === null ? [] : overlaysOf(base);
  $("overlaid").hidden = overlays.length === 0;
  const choices = overlays.length ? ["", ...overlays] : [];
  radios($("overlays"), choices, partsOf(view.stream ?? "").overlay, distinct(choices, overlayName), (overlay) => {
    const here = partsOf(view.stream).base;
    watch(overlay ? `${here}:${overlay}` : here);
  });
  $("source").hidden = $("environments").hidden && $("overlaid").hidden;
}

/** Watches the member of a number of the family that is watched, or the nearest there is. */
export function watchMember(number) {
  const here = watchedMember();
  if (!here || !isLive() || !Number.isFinite(number)) return;
  watch(withOverlay(here.family + Math.min(Math.max(Math.trunc(number), 0), here.count - 1)));
}

export function nextOverlay() {
  const buttons = [...$("overlays").children], here = buttons.findIndex((one) => one.getAttribute("aria-checked") === "true");
  buttons[(here + 1) % buttons.length]?.click();
}

export function watch(name) {
  if (!isLive()) return;
  view.chosen = name;
  rewrite("stream", name);
  listStreams(view.streams);
  changed();
}

function turnTo(stream) {
  view.stream = stream;
  const held = isHeld();
  view.held = null; picture.turn++;
  past.forget(); picture.forget();
  if (held) link.feed?.hold();
  if (stream !== null) link.feed?.watch();
}

const RUN_COMMANDS = new Map([["pause", "Pause run"], ["resume", "Resume run"]]); // not to be taken for holding the picture

/** The buttons of whoever may control: one that pauses or resumes, as the state has it, and one for each other command. */
export function listCommands() {
  const names = view.role === "control" && Array.isArray(view.state.commands) ? view.state.commands : [];
  const both = names.includes("pause") && names.includes("resume"); // one of them has a meaning at a time
  const shown = names.filter((name) => !both || name !== (view.state.paused ? "pause" : "resume"));
  $("control").hidden = shown.length === 0;
  const box = $("commands"), commandName = distinct(shown, (name) => RUN_COMMANDS.get(name) ?? worded(name));
  if (shown.join("\n") === box.dataset.shown) return;
  box.dataset.shown = shown.join("\n");
  box.replaceChildren(...shown.map((name) => {
    const button = document.createElement("button");
    button.type = "button"; button.className = "push"; button.dataset.command = name;
    button.textContent = commandName(name);
    button.disabled = !isLive();
    button.onclick = () => link.feed?.command?.(name, null);
    return button;
  }));
}

/** A group of radio buttons, made once and then only changed. */
function radios(box, names, chosen, text, act) {
  while (box.children.length > names.length) box.lastChild.remove();
  names.forEach((name, i) => {
    const button = box.children[i] ?? box.appendChild(radioButton());
    setText(button, text(name));
    button.dataset.name = name;
    button.onclick = () => act(name);
    button.disabled = !isLive();
    button.setAttribute("aria-checked", name === chosen);
    button.tabIndex = name === chosen ? 0 : -1;
  });
  const at = names.indexOf(chosen);
  if (box.dataset.chosen !== `${at} ${names.length}`) { box.dataset.chosen = `${at} ${names.length}`; reveal(box, at); }
}

function radioButton() {
  const button = document.createElement("button");
  button.type = "button";
  button.setAttribute("role", "radio");
  return button;
}

/** Scrolls the chosen button of a row into view, and nothing but the row. */
function reveal(box, at) {
  const button = box.children[at];
  if (button) box.scrollLeft += button.getBoundingClientRect().left + button.offsetWidth / 2 - box.getBoundingClientRect().left - box.clientWidth / 2;
}

/** Arrows move through a group of radio buttons, as anywhere. */
export function arrows(event) {
  const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key], all = [...event.currentTarget.children];
  if (!step || !all.length || !isLive()) return;
  event.preventDefault(); event.stopPropagation();
  const here = all.findIndex((one) => one.getAttribute("aria-checked") === "true");
  const there = all[(here + step + all.length) % all.length];
  there.click(); there.focus();
}
