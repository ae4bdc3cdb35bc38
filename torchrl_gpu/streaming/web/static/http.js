// Requests.

export const decodeText = (bytes) => new TextDecoder().decode(bytes);

export const address = (path, parameters = {}) => {
  const url = new URL(path, location.href);
  url.hash = ""; url.search = new URLSearchParams(parameters);
  return url;
};

export const pause = (ms) => new Promise((resume) => setTimeout(resume, ms));

/** A fetch that is given up after some time, or when the signal says so. */
export async function within(ms, signal, call) {
  const stop = new AbortController();
  const timer = setTimeout(() => stop.abort(), ms);
  signal?.addEventListener("abort", () => stop.abort(), { once: true });
  try { return await call(stop.signal); } finally { clearTimeout(timer); }
}

export const told = (status) => (status === 503 ? "All seats are taken" : status === 429 ? "Too many attempts" : `The server answered ${status}`);

/** What an answer says is wrong, in words. */
export async function reasonOf(answer) {
  const said = (await answer.json().catch(() => null))?.message;
  return typeof said === "string" ? said : told(answer.status);
}
