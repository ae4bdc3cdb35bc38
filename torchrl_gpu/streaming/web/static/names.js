// Names of streams: families, their members, overlays.

import { worded } from "./format.js";
import { view } from "./state.js";

/** What a stream shows: `BASE`, or `BASE:OVERLAY` for the same with something laid over it. */
export function partsOf(name) {
  const one = view.streams.find((each) => each.name === name) ?? {}, at = name.indexOf(":");
  return { base: one.base ?? (at < 0 ? name : name.slice(0, at)), overlay: one.overlay ?? (at < 0 ? "" : name.slice(at + 1)) };
}

/** Families, of which any member can be watched by its number, in the list or not: how many there are, by name. */
function families() {
  const found = new Map();
  for (const { name, count } of view.streams) {
    const base = name.replace(/\d*(:.*)?$/, "");
    if (Number.isInteger(count) && count > 0 && (!found.has(base) || name === base)) found.set(base, count);
  }
  return found;
}

/** Family and number of a base, and how many its family has; null for what is of none. */
export function memberOf(base) {
  const [, family, digits] = /^(.*\D)(0|[1-9]\d*)$/.exec(base) ?? [], count = families().get(family);
  return count !== undefined && Number(digits) < count ? { family, number: Number(digits), count } : null;
}

/** What can be laid over a base. What the list has for one environment, there is for all of the family. */
export function overlaysOf(base) {
  const family = memberOf(base)?.family;
  const found = view.streams.map((one) => partsOf(one.name)).filter((one) =>
    one.overlay && (one.base === base || (family !== undefined && (one.base === family || memberOf(one.base)?.family === family))));
  return [...new Set(found.map((one) => one.overlay))];
}

export function exists(name) {
  if (!name) return false;
  if (view.streams.some((one) => one.name === name && (one.count === undefined || memberOf(name) !== null || partsOf(name).overlay))) return true;
  const { base, overlay } = partsOf(name);
  return memberOf(base) !== null && (!overlay || overlaysOf(base).includes(overlay));
}

/** The bases to choose from: of each family one member, then what is of none. */
export function tabs() {
  const bases = [...new Set(view.streams.map((one) => partsOf(one.name).base))], all = families();
  const here = view.stream === null ? null : memberOf(partsOf(view.stream).base);
  const members = [...all].map(([family, count]) =>
    family + (here?.family === family ? here.number : Math.min(view.members.get(family) ?? 0, count - 1)));
  return [...members, ...bases.filter((base) => memberOf(base) === null && !all.has(base))];
}

export function nameOf(base) {
  const titleOf = (name) => view.streams.find((each) => each.name === name)?.title, member = memberOf(base);
  return member === null ? titleOf(base) || base : `${familyName(member.family, titleOf(member.family))} ${member.number}`;
}

const familyName = (family, title) => (title && title !== family ? title : family === "env" ? "Environment" : worded(family));

/** A base with the overlay that is shown now, if it has it. */
export function withOverlay(base) {
  const { overlay } = partsOf(view.stream ?? "");
  return overlay && overlaysOf(base).includes(overlay) ? `${base}:${overlay}` : base;
}

const OVERLAYS = new Map([["", "None"], ["q", "Q map"], ["seen", "What it saw"]]);
export const overlayName = (overlay) => OVERLAYS.get(overlay) ?? worded(overlay);

/** The member that is watched; null where what is watched is none. */
export const watchedMember = () => (view.stream === null ? null : memberOf(partsOf(view.stream).base));

/** What is watched, in words. */
export function title() {
  if (view.stream === null) return "live";
  const { base, overlay } = partsOf(view.stream);
  return nameOf(base) + (overlay ? `, ${overlayName(overlay).toLowerCase()}` : "");
}
