// The answer to one photo: its bars, and how methods differ on it.

import { barCell, h, largest, number, percent } from "./dom.js";

const BARS = 5;
const ROWS = 6;

/** What is shown of an answer. */
export function showAnswer(answer, facts) {
  const [found] = answer.predictions;
  return [
    h("div", { class: "verdict" },
      h("p", { class: "label", id: "label" }, found.label),
      h("p", { class: "sure" }, `${percent(found.confidence)} sure, by ${facts.method}. ${learned(answer)}`)),
    h("div", { class: "pair" }, bars(found), found.explain && differences(found.explain, facts)),
  ];
}

/** The same in a sentence, for those who listen. */
export function sayAnswer(answer) {
  const [found] = answer.predictions;
  const kept = found.explain ? found.explain.views.filter((v) => v.kept).length : 0;
  const views = kept ? ` ${kept} of ${found.explain.views.length} views count.` : "";
  return `${found.label}, ${percent(found.confidence)}.${views} ${learned(answer)}`;
}

function learned(answer) {
  if (answer.repeated) return `Learned once, as photo ${number(answer.seen)} of the stream.`;
  return answer.learned ? `Learned, as photo ${number(answer.seen)} of the stream.` : "Asked, not learned.";
}

/** The answers to all photos since the page was opened; `choose` shows one of them again. */
export function listAnswers(rows, choose, shown) {
  return rows.map((row) => {
    const [found] = row.answer.predictions;
    const look = found.explain?.views[0].thumbnail;
    return h("tr", { class: row.photo === shown ? "chosen" : "" },
      h("th", { scope: "row" }, h("button", { type: "button", class: "photo", onclick: () => choose(row),
        "aria-current": row.photo === shown && "true" },
      look && h("img", { src: look, alt: "", width: 40, height: 40 }), h("span", {}, row.photo.name))),
      h("td", {}, found.label), h("td", {}, percent(found.confidence)));
  });
}

/** The same as CSV; no spreadsheet takes a cell for a formula. */
export function answersAsCsv(rows) {
  const cell = (value) => {
    const text = /^[=+\-@\t\r]/.test(value) ? `'${value}` : String(value);
    return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  const lines = rows.map(({ photo, answer, facts }) => [photo.name, answer.predictions[0].label,
    answer.predictions[0].confidence, facts.id, facts.method, answer.learned]);
  const head = ["photo", "label", "confidence", "stream", "method", "learned"];
  return [head, ...lines].map((line) => `${line.map(cell).join(",")}\r\n`).join("");
}

function bars(found) {
  const row = ([name, share], i) => h("tr", { class: i ? "" : "first" },
    h("th", { scope: "row" }, name), barCell(share, percent(share), i ? "mint" : "mark"));
  return h("table", { class: "bars" }, h("caption", {}, "The most probable classes"),
    h("tbody", {}, found.best.slice(0, BARS).map(row)));
}

function differences(explain, facts) {
  const { methods, prior, q } = explain;
  const names = Object.keys(methods);
  const most = facts.classes.map((_, c) => Math.max(...names.map((m) => methods[m][c])));
  const kind = { "zero-shot": "grey", se: "cool" };
  const top = Object.fromEntries(names.map((m) => [m, largest(methods[m], 1)[0]]));
  const row = (c) => h("tr", {},
    h("th", { scope: "row" }, facts.classes[c]),
    names.map((m) => barCell(methods[m][c], percent(methods[m][c]),
      `${kind[m] ?? "mark"} ${top[m] === c ? "top" : ""}`)),
    prior && h("td", {}, percent(prior[c])),
    q && h("td", {}, q[c].toFixed(2)));
  const heads = [...names, ...(prior ? ["prior"] : []), ...(q ? ["q"] : [])];
  return h("div", { class: "differ" },
    h("p", {}, h("strong", { id: "differ" }, sentence(names, top, facts.classes))),
    h("div", { class: "wide", tabindex: "0", role: "group", "aria-label": "How methods differ" },
      h("table", {}, h("caption", {}, "What each method says of this photo"),
        h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "class"),
          heads.map((name) => h("th", { scope: "col" }, name)))),
        h("tbody", {}, largest(most, ROWS).map(row)))),
    prior && h("p", { class: "note" }, "Prior: how much the model favours a class, as the stream ",
      "tells by then. Favoured classes are held back."),
    q && h("p", { class: "note" }, "q: the power that measures a view’s doubt, by class."));
}

function sentence(names, top, classes) {
  const said = new Map();
  for (const name of names) said.set(top[name], [...(said.get(top[name]) ?? []), name]);
  if (said.size === 1) return `${list(names)} agree: ${classes[top[names[0]]]}.`;
  const parts = [...said].map(([c, by]) => `${list(by)} ${by.length > 1 ? "say" : "says"} ${classes[c]}`);
  return `${parts.join("; ")}.`;
}

function list(words) {
  return words.length < 2 ? words.join("") : `${words.slice(0, -1).join(", ")} and ${words.at(-1)}`;
}
