// Groups of radio buttons.

import { setText } from "./dom.js";
import { isLive } from "./state.js";

/** A group of radio buttons, made once and then only changed. */
export function radios(box, names, chosen, text, act) {
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
