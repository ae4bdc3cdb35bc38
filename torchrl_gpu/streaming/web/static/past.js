// The pictures of the last minute: kept, held, looked through, and the replay of an episode.

import { $ } from "./dom.js";
import { changed, isHeld, isLive, link, now, view } from "./state.js";
import { picture } from "./picture.js";

const PAST_MS = 60000, PAST_BYTES = 32e6; // of the pictures that are kept
const JPEG_SPACING_MS = 95, VIDEO_SPACING_MS = 190; // between two of them

/** The pictures of the last minute of the stream that is watched, each with its header: JPEG files, bounded in bytes. */
export const past = {
  kept: [], bytes: 0, newest: null, busy: false, turn: 0,

  /** Keeps some of the pictures that come. */
  take(header, jpeg) {
    const last = this.kept.at(-1), at = now();
    this.newest = { header, jpeg, at };
    if (this.busy || (last && at - last.at < (jpeg ? JPEG_SPACING_MS : VIDEO_SPACING_MS))) return;
    this.keepNewest();
  },

  /** Keeps the newest picture. What has come in another form than JPEG is encoded, beside everything else. */
  keepNewest() {
    const entry = this.newest;
    if (!entry || this.kept.includes(entry)) return;
    this.kept.push(entry);
    this.trim();
    if (entry.jpeg) { this.bytes += entry.jpeg.size; return; }
    if (!$("video").hidden) picture.draw($("video"), entry.header);
    this.busy = true;
    picture.canvas.toBlob((blob) => {
      this.busy = false;
      entry.jpeg = blob;
      if (blob && this.kept.includes(entry)) this.bytes += blob.size;
    }, "image/jpeg", .85);
  },

  /** Lets go of what has become too old or too much. */
  trim() {
    while (this.kept.length > 1 && (this.bytes > PAST_BYTES || this.kept[0].at < now() - PAST_MS)) this.bytes -= this.kept.shift().jpeg?.size ?? 0;
  },

  /** The kept picture that was captured with the one that is shown. */
  here() {
    if (isHeld()) return view.held;
    if (!view.replay) return this.kept.length - 1;
    const distances = this.kept.map((one) => Math.abs(one.header.captured - view.header.captured));
    return Math.max(distances.indexOf(Math.min(...distances)), 0);
  },

  forget() { this.kept = []; this.bytes = 0; this.newest = null; this.busy = false; this.turn++; },
};

/** Holds the picture at one that is kept, counted from the oldest, and says of it what was said then. */
export async function showPast(index) {
  if (!past.kept.length) return;
  hold(Math.min(Math.max(index, 0), past.kept.length - 1));
  await drawKept(past.kept[view.held]);
}

async function drawKept({ header, jpeg }) {
  const mine = ++picture.turn, image = jpeg && await createImageBitmap(jpeg).catch(() => null);
  if (image && mine === picture.turn) {
    $("video").hidden = true; picture.canvas.hidden = false;
    picture.draw(image, header);
    picture.shown({ ...header, held: isHeld() });
    changed();
  }
  image?.close();
}

/** Keeps the picture that is shown; no more are asked for. The run goes on. */
function hold(index) {
  const begins = !isHeld();
  view.held = index; view.replay = false;
  if (begins) link.feed?.hold();
  changed();
}

/** Back to what happens now. Until the next picture comes, that is the newest one there is. */
function goLive() {
  if (!isHeld()) return;
  const newest = past.kept.at(-1);
  view.held = null;
  picture.turn++;
  const video = $("video");
  if (video.srcObject) { video.hidden = false; picture.canvas.hidden = true; }
  else if (newest) drawKept(newest);
  view.resumedAt = now();
  link.feed?.hold();
  changed();
}

/** Holds the picture that is shown, be it live or replayed. */
function holdHere() {
  if (view.replay) return showPast(past.here());
  past.keepNewest();
  if (past.kept.length) hold(past.kept.length - 1);
}

export const toggleHold = () => (isHeld() ? goLive() : holdHere());
export const showBefore = () => { if (!isHeld()) holdHere(); showPast(view.held - 1); };
export const showAfter = () => isHeld() && (view.held + 1 < past.kept.length ? showPast(view.held + 1) : goLive());
export const replay = () => { if (isLive() && link.feed?.replays) { goLive(); link.feed.replay(); } };

picture.onCame = (header, jpeg) => past.take(header, jpeg);
