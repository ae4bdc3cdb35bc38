// Drawing of lines.

/** A canvas for a plot, cleared and scaled for the screen; null while it takes up no room. */
export function penOf(canvas) {
  const { clientWidth: width, clientHeight: height } = canvas, zoom = devicePixelRatio || 1;
  if (!width) return null;
  const g = canvas.getContext("2d"), style = getComputedStyle(canvas);
  canvas.width = Math.round(width * zoom); canvas.height = Math.round(height * zoom);
  g.scale(zoom, zoom);
  return { g, width, height, color: (name) => style.getPropertyValue("--" + name) };
}

/** Least and greatest of some values, with something around a single one. */
export function boundsOf(values, range) {
  let [low, high] = range ?? [Infinity, -Infinity];
  for (const value of values) { low = Math.min(low, value); high = Math.max(high, value); }
  if (high - low < 1e-12) { const around = Math.abs(high) * .1 || 1; low -= around; high += around; }
  return [low, high];
}

export function dot(g, x, y, radius, color) { g.fillStyle = color; g.beginPath(); g.arc(x, y, radius, 0, 7); g.fill(); }

export function stroke(g, xs, ys) {
  g.beginPath();
  xs.forEach((x, i) => (i ? g.lineTo(x, ys[i]) : g.moveTo(x, ys[i])));
  g.stroke();
}

/** The mean over a fortieth of the points to either side. */
export function smooth(values) {
  const reach = Math.max(Math.round(values.length / 40), 1), sums = [0];
  for (const value of values) sums.push(sums.at(-1) + value);
  return values.map((_, i) => {
    const from = Math.max(i - reach, 0), to = Math.min(i + reach + 1, values.length);
    return (sums[to] - sums[from]) / (to - from);
  });
}

/** Where the nearest of some rising numbers stands. */
export function nearest(numbers, wanted) {
  let low = 0, high = numbers.length - 1;
  while (high - low > 1) { const middle = (low + high) >> 1; if (numbers[middle] <= wanted) low = middle; else high = middle; }
  return wanted - numbers[low] <= numbers[high] - wanted ? low : high;
}
