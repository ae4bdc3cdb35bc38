// Numbers and names as text.

export const worded = (name) => (name.charAt(0).toUpperCase() + name.slice(1)).replaceAll("_", " ");
export const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
export const short = new Intl.NumberFormat("en", { maximumSignificantDigits: 4 });
export const percent = new Intl.NumberFormat("en", { style: "percent", minimumFractionDigits: 1, maximumFractionDigits: 1 });
export const large = (value) => (Math.abs(value) >= 1e6 ? short.format(value / 1e6) + " M" : whole.format(value));
export const twoPlaces = (value) => (Math.abs(value) >= 1000 ? whole.format(value) : value.toFixed(2));

/** Makes texts of names of which no two read the same: those that would, have their names behind them. */
export function distinct(names, text) {
  const count = new Map();
  for (const name of new Set(names)) count.set(text(name), (count.get(text(name)) ?? 0) + 1);
  return (name) => (count.get(text(name)) > 1 && text(name) !== name ? `${text(name)} (${name})` : text(name));
}

/** A value as short as it can be told. */
export function figure(value) {
  const size = Math.abs(value);
  if (size >= 1e6 || (size < 1e-3 && size > 0)) return value.toExponential(2).replace("e+", "e").replace("-", "−");
  return size >= 1000 ? whole.format(value) : short.format(value);
}

export function factText(value) {
  if (typeof value === "boolean") return value ? "Yes" : "No";
  if (value === null) return "–";
  if (Array.isArray(value)) return value.map(factText).join(", ");
  if (typeof value !== "number") return String(value);
  return Number.isInteger(value) ? whole.format(value) : short.format(value);
}

export function ageText(age) {
  if (age === null) return "–";
  if (age < 1000) return `${Math.round(age)} ms`;
  return age < 60000 ? `${(age / 1000).toFixed(1)} s` : `${Math.floor(age / 60000)} min`;
}

export const ageKind = (age) => (age === null ? "" : age < 150 ? "fresh" : age < 1000 ? "late" : "old");

export function bitsText(bits) {
  if (!bits) return "–";
  return bits >= 1e6 ? `${(bits / 1e6).toFixed(1)} Mb/s` : `${Math.round(bits / 1000)} kb/s`;
}
