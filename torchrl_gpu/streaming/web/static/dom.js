// Elements of the page, changed only where they differ.

export const $ = (id) => document.getElementById(id);
export function setStyle(element, name, value) { if (element.style[name] !== value) element.style[name] = value; }
export function setText(element, text) { if (element.textContent !== text) element.textContent = text; }
export function setDisabled(element, off) { if (element.disabled !== off) element.disabled = off; }
export function setIcon(button, name) { button.querySelector("use").setAttribute("href", "#i-" + name); }

let saidTimer = 0;
export function say(text) {
  if (!text) return;
  setText($("said"), text); $("said").hidden = false;
  clearTimeout(saidTimer);
  saidTimer = setTimeout(() => { $("said").hidden = true; }, 4500);
}
