// Wires the page and connects. Where to look: `connection.js` chooses a transport and keeps it; `*_feed(s).js` are the
// transports; `decoders.js` and `picture.js` paint what comes, `past.js` keeps a minute of it; `lists.js` shows what the
// server tells; `curves.js`, `metrics.js`, `policy.js` are panels; `render.js` draws the rest; `state.js` is what all share.

import { $, say } from "./dom.js";
import { attention, kept, link, query, rateOf, rewrite, traffic, view } from "./state.js";
import { fit } from "./picture.js";
import { replay, showPast, toggleHold } from "./past.js";
import { watchedMember } from "./names.js";
import { curves } from "./curves.js";
import { listLimits, listTransports, TRANSPORTS, tryDecoder } from "./transports.js";
import { arrows, watchMember } from "./lists.js";
import { chooseTransport, connect, login, soon } from "./connection.js";
import { render } from "./render.js";
import { fullChanged, preferred, pressed, save, setHidden, setTheme, stir, toggleFull, toggleTheme } from "./controls.js";
import "./socket_feed.js";
import "./http_feeds.js";
import "./peer_feed.js";

$("hold").onclick = toggleHold;
$("past").oninput = (event) => showPast(event.target.valueAsNumber);
$("previous").onclick = () => watchMember(watchedMember()?.number - 1);
$("next").onclick = () => watchMember(watchedMember()?.number + 1);
$("number").onchange = (event) => { watchMember(event.target.valueAsNumber); event.target.value = watchedMember()?.number ?? 0; };
$("number").onkeydown = (event) => event.key === "Escape" && event.target.blur();
$("choose").onclick = () => curves.toggleChoices();
$("filter").oninput = () => curves.listChoices();
$("replay").onclick = replay;
$("save").onclick = save;
$("full").onclick = toggleFull;
$("theme").onclick = toggleTheme;
$("keys").onclick = () => $("shortcuts").showModal();
$("shut").onclick = () => $("shortcuts").close();
$("login").onsubmit = login;
$("streams").onkeydown = $("overlays").onkeydown = arrows;
$("viewer").onpointermove = stir;
$("transport").onchange = (event) => chooseTransport(event.target.value);
$("limit").onchange = (event) => { view.limit = rateOf(event.target.value); rewrite("fps", view.limit); traffic.clear(); link.feed?.watch(); };
document.onkeydown = pressed;
document.onvisibilitychange = setHidden;
document.onfullscreenchange = fullChanged;
window.ononline = soon;
window.onpagehide = () => { link.feed?.close(); link.feed = null; };
window.onpageshow = (event) => event.persisted && connect();
preferred.onchange = () => kept.get("theme") || setTheme(preferred.matches ? "dark" : "light");
new ResizeObserver(() => fit(view.header?.width ?? 640, view.header?.height ?? 480)).observe($("viewer"));

setTheme(kept.get("theme") ?? (preferred.matches ? "dark" : "light"));
if (Object.hasOwn(TRANSPORTS, query.get("transport"))) view.wish = query.get("transport");
else if (query.has("transport") && query.get("transport") !== "auto") say(`transport must be one of auto, ${Object.keys(TRANSPORTS).join(", ")}.`);
if (query.get("fps") && view.limit === null) say("fps must be 0.1 to 1000 pictures a second.");
listLimits(); listTransports();
setInterval(() => { attention.ms(); if (!document.hidden) requestAnimationFrame(render); }, 100);
tryDecoder().then(connect);
