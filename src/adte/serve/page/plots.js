// Drawings of a stream: labels over time, and lines below them on the same axis.

import { h, s } from "./dom.js";

const ROWS = 8;
const STEP = 22; // pixels of a row
const LEAST = 40; // photos that an axis has room for
const HEIGHT = 84;

const x = (i, count, width) => 3 + ((i + 0.5) * (width - 6)) / Math.max(LEAST, count);

/** One row a class, one tick a photo, the latest at the right; a cross where the label was wrong. */
export function timeline(rows, classes, width) {
  const counts = new Map();
  for (const { index } of rows) counts.set(index, (counts.get(index) ?? 0) + 1);
  const sorted = [...counts].sort((a, b) => b[1] - a[1] || a[0] - b[0]).map(([index]) => index);
  const shown = sorted.length > ROWS ? sorted.slice(0, ROWS - 1) : sorted;
  const names = [...shown.map((index) => classes[index]), ...(sorted.length > ROWS ? ["others"] : [])];
  const place = (index) => (shown.includes(index) ? shown.indexOf(index) : ROWS - 1);
  const said = sorted.slice(0, ROWS).map((index) => `${classes[index]} ${counts.get(index)}`);
  const drawing = s("svg", { width, height: STEP * names.length, role: "img", class: "ticks",
    "aria-label": `Labels of the last ${rows.length} photos: ${said.join(", ")}` },
  names.map((_, r) => s("line", { x1: 0, x2: width, y1: STEP * (r + 0.5), y2: STEP * (r + 0.5) })),
  rows.map((row, i) => tick(row, x(i, rows.length, width), STEP * (place(row.index) + 0.5), classes)));
  return h("div", { class: "time" }, h("div", { class: "names", "aria-hidden": "true" },
    names.map((name) => h("span", { title: name }, name))), drawing);
}

function tick({ truth, confidence, learned, label }, at, y, classes) {
  const wrong = truth !== null && classes[truth] !== label;
  const told = `${label} ${(100 * confidence).toFixed(0)} %`
    + (truth === null ? "" : wrong ? `, was ${classes[truth]}` : ", right") + (learned ? "" : ", not learned");
  const path = wrong ? `M${at - 4} ${y - 4}l8 8m0 -8l-8 8` : `M${at} ${y - 5}v10`;
  return s("path", { d: path, class: wrong ? "wrong" : "", "stroke-opacity": wrong ? 1 : 0.3 + 0.7 * confidence },
    s("title", {}, told));
}

/** A line over the same axis; values may be null where there is none. */
export function line(values, name, kind, width, most, format) {
  const there = values.filter((v) => v !== null);
  const top = most ?? nice(Math.max(...there, 0.02));
  const y = (v) => HEIGHT - 6 - ((HEIGHT - 16) * v) / top;
  let path = "";
  let pen = "M";
  values.forEach((v, i) => {
    if (v === null) return;
    path += `${pen}${x(i, values.length, width).toFixed(1)} ${y(v).toFixed(1)}`;
    pen = "L";
  });
  const last = values.findLastIndex((v) => v !== null);
  const drawing = s("svg", { width, height: HEIGHT, role: "img", class: `line ${kind}`,
    "aria-label": `${name} over the last ${values.length} photos, now ${format(there.at(-1))}` },
  [0, top].map((v) => s("line", { x1: 0, x2: width, y1: y(v), y2: y(v) })),
  s("path", { d: path }),
  s("circle", { cx: x(last, values.length, width), cy: y(values[last]), r: 3.5 }));
  return h("div", { class: "time" }, h("div", { class: "names axis", "aria-hidden": "true" },
    h("span", {}, format(top)), h("span", {}, name), h("span", {}, format(0))), drawing);
}

function nice(value) {
  return [0.02, 0.05, 0.1, 0.2, 0.5, 1].find((step) => value <= step) ?? 1;
}

/** The share of right answers so far, at each photo; null before the first label. */
export function accuracy(rows, classes) {
  let [right, known] = [0, 0];
  return rows.map(({ label, truth }) => {
    if (truth !== null) [right, known] = [right + (label === classes[truth]), known + 1];
    return known ? right / known : null;
  });
}
