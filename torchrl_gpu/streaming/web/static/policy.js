// The panel of a policy: what it saw and did.

import { $, setText } from "./dom.js";
import { ageText, figure, percent, whole } from "./format.js";
import { isHeld, view } from "./state.js";
import { partsOf } from "./names.js";

const FACTS = ["policy", "stale", "inference_ms", "message_age_ms", "confidence", "choices"];
const isOfPolicy = (name) => FACTS.includes(name) || name.startsWith("action/");

/** The panel of a policy: numbers are those of the picture that is shown, the small picture is the newest there is. */
export const policy = {
  asked: null, turn: 0, of: null,

  /** The stream of what the policy saw of the one that is watched; null where there is none. */
  stream() {
    const name = view.stream === null ? null : `${partsOf(view.stream).base}:seen`;
    return name !== view.stream && view.streams.some((one) => one.name === name) ? name : null;
  },

  /** Paints what the policy saw, a JPEG. */
  async see(header, bytes) {
    if (header.stream !== this.stream() || isHeld() || view.replay) return;
    const mine = ++this.turn, image = await createImageBitmap(new Blob([bytes], { type: "image/jpeg" })).catch(() => null);
    if (image && mine === this.turn) {
      const canvas = $("seen");
      if (canvas.width !== header.width || canvas.height !== header.height) { canvas.width = header.width; canvas.height = header.height; }
      canvas.getContext("2d").drawImage(image, 0, 0);
      this.of = header;
    }
    image?.close();
  },

  /** Whether the panel shows this fact as it is: a number, the policy's name, a flag. */
  tells(name, value) {
    if ($("policy").hidden || !isOfPolicy(name)) return false;
    if (name === "policy") return typeof value === "string";
    return typeof value === (name === "stale" || name === "choices" ? "boolean" : "number");
  },

  /** What is told of it: by the picture, and by the program, whose numbers are of now and not of an older picture. */
  facts() { return isHeld() || view.replay ? view.header?.meta ?? {} : { ...view.state, ...view.header?.meta }; },

  /** Whether there is more to tell than a name, which is told among the facts otherwise. */
  any(facts = this.facts()) { return Object.keys(facts).some((name) => name !== "policy" && isOfPolicy(name)); },

  render() {
    const facts = this.facts(), any = this.any(facts), stale = facts.stale === true, seen = this.of !== null && this.of.stream === this.stream();
    $("policy").hidden = !any && !seen;
    if (!any && !seen) return;
    const past = (isHeld() || view.replay) && Math.abs(this.of?.captured - view.header?.captured) > .2;
    $("saw").hidden = !seen || past;
    $("policy").dataset.stale = stale; $("stale").hidden = !stale;
    setText($("policy-who"), typeof facts.policy === "string" ? facts.policy : "");
    const ms = (value) => (value < 100 ? `${value.toFixed(1)} ms` : ageText(value));
    this.fact("inference", facts.inference_ms, ms);
    this.fact("message-age", facts.message_age_ms, ms, stale);
    this.fact("confidence", facts.confidence, (value) => percent.format(value));
    const actions = Object.entries(facts).filter(([name, value]) => name.startsWith("action/") && (value === null || typeof value === "number")).map(([name, value]) => [name.slice(7), value]);
    const one = actions.length === 1 && Number.isInteger(actions[0][1]); // a choice
    this.fact("action", one ? actions[0][1] : undefined, (value) => whole.format(value));
    this.bars(one ? [] : actions, facts.choices === true);
  },

  fact(id, value, text, bad = false) {
    $(id).parentElement.hidden = value !== null && typeof value !== "number";
    setText($(id), typeof value === "number" ? text(value) : "–");
    $(id).dataset.kind = bad ? "bad" : "";
  },

  /** A bar from zero for each value; all have the scale of the largest, which is at least one. Choices have none. */
  bars(actions, choices) {
    const box = $("actions"), most = Math.max(1, ...actions.map(([, value]) => Math.abs(value ?? 0)));
    box.hidden = actions.length === 0;
    while (box.children.length > actions.length) box.lastChild.remove();
    actions.forEach(([name, value], i) => {
      const row = box.children[i] ?? box.appendChild(document.createElement("li"));
      if (!row.firstChild) row.append(...["span", "i", "b"].map((kind) => document.createElement(kind)));
      const [label, bar, number] = row.children, share = typeof value === "number" ? value / most : 0;
      setText(label, name); label.title = name;
      bar.style.visibility = choices ? "hidden" : "";
      bar.style.setProperty("--from", `${50 + 50 * Math.min(share, 0)}%`);
      bar.style.setProperty("--size", `${50 * Math.abs(share)}%`);
      setText(number, typeof value === "number" ? figure(value).replace("-", "−") : "–");
    });
  },
};
