// What the page knows: what is watched, the connection, the clock of the server, the traffic. Everything else reads it.

export const query = new URLSearchParams(location.search);
export const now = () => performance.now();
/** A rate that the server gives, pictures a second; null for what is none. */
export function rateOf(text) { const rate = Number(text); return rate >= .1 && rate <= 1000 ? rate : null; }

export const kept = {
  get(key) { try { return localStorage.getItem("torchrl_gpu." + key); } catch { return null; } },
  set(key, value) { try { localStorage.setItem("torchrl_gpu." + key, value); } catch { /* private window */ } },
};

export const view = {
  stream: null, chosen: query.get("stream"), streams: [], wish: "auto", using: null, limit: rateOf(query.get("fps")),
  held: null, members: new Map(), hidden: document.hidden, resumedAt: -Infinity, role: "view", state: {}, header: null, replay: false,
};

/**
 * The server's clock on this machine. Pings tell the offset to within half of the quickest one's way there and back. Without
 * them each picture says when it was sent, which was before it came: the quickest counts, and half a request's way is added.
 */
export const clock = {
  pings: [], quickest: null, trip: Infinity,
  reset() { this.pings = []; this.quickest = null; this.trip = Infinity; },
  ping(sentAt, cameAt, serverMs) {
    this.pings = [...this.pings.slice(-9), { trip: cameAt - sentAt, offset: serverMs - (sentAt + cameAt) / 2 }];
  },
  picture(cameAt, sentMs) { this.quickest = Math.max(this.quickest ?? -Infinity, sentMs - cameAt); },
  request(sentAt, cameAt) { this.trip = Math.min(this.trip, cameAt - sentAt); },
  server() {
    if (this.pings.length) return now() + this.pings.reduce((least, one) => (one.trip < least.trip ? one : least)).offset;
    return this.quickest === null ? null : now() + this.quickest + (this.trip < Infinity ? this.trip / 2 : 0);
  },
};

/** Counts over the last two seconds: of new pictures, and of the bytes of all. */
export const traffic = {
  seen: [],
  add(bytes, isNew = true) { this.seen.push([now(), bytes, isNew]); },
  recent() {
    const since = now() - 2000;
    while (this.seen.length && this.seen[0][0] < since) this.seen.shift();
    if (this.seen.length < 2) return { rate: 0, bits: 0 };
    const spanMs = this.seen.at(-1)[0] - this.seen[0][0];
    const rest = this.seen.slice(1);
    const bytes = rest.reduce((sum, one) => sum + one[1], 0);
    return { rate: (rest.filter((one) => one[2]).length / spanMs) * 1000, bits: (bytes * 8000) / spanMs };
  },
  clear() { this.seen = []; },
};

/** The connection: its feed, and "wait", "live", "lost" or "ask". */
export const link = { feed: null, state: "wait", trouble: "", retryAt: 0, failures: 0 };

const ASLEEP_MS = 5000;    // the page looks ten times a second: where two looks are further apart, the machine slept

/**
 * Time for which the page has waited for pictures: neither hidden nor holding one, nor on a machine that slept. A gap between
 * two pictures is told by it, as it says how rare they are, and not how long the page was away.
 */
export const attention = {
  spent: 0, at: now(),
  ms() {
    const at = now(), passed = at - this.at;
    this.at = at;
    if (!stopped() && passed < ASLEEP_MS) this.spent += passed;
    return this.spent;
  },
};

export const isHeld = () => view.held !== null;
export const stopped = () => isHeld() || view.hidden;
export const isLive = () => link.state === "live";

/** Has the page drawn at once; it is drawn ten times a second besides. */
export const changed = () => document.dispatchEvent(new Event("changed"));

/** Keeps the address a link to what is shown. */
export function rewrite(key, value) {
  const url = new URL(location.href);
  if (value) url.searchParams.set(key, value); else url.searchParams.delete(key);
  history.replaceState(null, "", url);
}
