// The views of one photo: where they lie in it, how sure the model is of each, which ones count.

import { h, largest, percent, s } from "./dom.js";

const MEASURES = { shannon: "Shannon", tsallis: "Tsallis", adaptive: "adaptive Tsallis" };
const OUTLINES = 6;
const ORDERS = { drawn: "as drawn", weight: "what counts most", entropy: "surest first" };

/** What is shown of the views; `answer` is the class that was told. */
export function showViews(explain, url, method, answer) {
  const { views, image } = explain;
  // The base view may count far more than the others; their bars are to be seen all the same.
  const full = Math.max(0, ...views.slice(1).map((v) => v.weight ?? 0)) || views[0].weight || 1;
  const part = (v) => Math.min(1, v.weight / full);
  const outlines = largest(views.map((v) => v.weight ?? 0), OUTLINES).filter((v) => views[v].weight);
  const box = (v, props) => s("rect", {
    x: v.box.left, y: v.box.top, width: v.box.width, height: v.box.height, ...props,
  });
  const here = s("g", { class: "here" });
  const map = h("div", { class: "map", "--ratio": image.width / image.height },
    h("img", { src: url, alt: "The photo, with the outlines of the views that count most" }),
    s("svg", { viewBox: `0 0 ${image.width} ${image.height}`, preserveAspectRatio: "none",
      "aria-hidden": "true" },
    outlines.map((v) => box(views[v], { "stroke-opacity": 0.2 + 0.7 * part(views[v]) })),
    here));

  const detail = h("p", { class: "detail" });
  const grid = h("div", { class: "grid", role: "listbox", tabindex: "0", id: "grid",
    "aria-label": `${views.length} views`, "aria-describedby": "grid-hint" });
  const cells = views.map((v, i) => h("div", {
    class: `view ${v.kept ? "kept" : "dropped"}`, role: "option", id: `view-${i}`,
    "aria-label": describe(v, i), "aria-selected": "false",
    onmouseenter: () => choose(i), onclick: () => choose(i),
  },
  v.thumbnail ? h("img", { src: v.thumbnail, alt: "" }) : h("span", { class: "blank" }),
  v.weight === null ? null : h("i", { class: "weight", "--share": part(v) }),
  h("small", {}, (v.index === answer ? "" : "≠ ") + v.entropy.toFixed(2))));

  function choose(i) {
    cells.forEach((cell, j) => cell.setAttribute("aria-selected", String(i === j)));
    grid.setAttribute("aria-activedescendant", `view-${i}`);
    detail.textContent = describe(views[i], i);
    here.replaceChildren(box(views[i], { class: "under" }), box(views[i], {}));
  }
  function arrange(by) {
    const order = by === "drawn" ? [...views.keys()]
      : largest(views.map((v) => (by === "weight" ? v.weight ?? 0 : -v.entropy)));
    grid.replaceChildren(...order.map((i) => cells[i]));
  }
  grid.addEventListener("keydown", (event) => {
    const shown = [...grid.children];
    const at = shown.findIndex((cell) => cell.getAttribute("aria-selected") === "true");
    const across = getComputedStyle(grid).gridTemplateColumns.split(" ").length;
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, ArrowDown: at + across,
      ArrowUp: at - across, Home: 0, End: shown.length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    if (shown[to]) choose(cells.indexOf(shown[to]));
  });
  arrange("drawn");
  choose(outlines[0] ?? 0);

  return [
    h("p", { id: "kept" }, summary(explain, method)),
    h("p", {}, votes(views)),
    h("div", { class: "views" },
      h("div", { class: "where" }, map, detail),
      h("div", {},
        h("div", { class: "row" }, h("label", { for: "order" }, "Order"),
          h("select", { id: "order", onchange: (event) => arrange(event.target.value) },
            Object.entries(ORDERS).map(([value, text]) => h("option", { value }, text)))),
        grid,
        h("p", { class: "note", id: "grid-hint" }, "The number is the ",
          `${MEASURES[explain.measure] ?? explain.measure} entropy, low where the model is sure; the `,
          `bar is the share in the answer, full at ${percent(full)}. `,
          "≠ marks views that by themselves say another class. Point at a view, or use the arrow keys, to see where it lies."))),
  ];
}

function describe(v, i) {
  const counts = v.weight === null ? "" : v.kept ? `, counts ${percent(v.weight)}` : ", not used";
  return `${i ? `View ${i}` : "Base view"}: ${v.label} ${percent(v.confidence)}, `
    + `entropy ${v.entropy.toFixed(2)}${counts}`;
}

function summary({ views }, method) {
  const used = views.filter((v) => v.weight > 0);
  if (!used.length) return `${views.length} views. ${method} does not choose among them.`;
  const lead = used.length > 1 && views[0].weight > 2 * Math.max(...views.slice(1).map((v) => v.weight));
  const rest = used.slice(lead ? 1 : 0).map((v) => v.weight);
  const [low, high] = [Math.min(...rest), Math.max(...rest)].map(percent);
  const share = low === high ? `${high} each` : `from ${high} down to ${low}`;
  const first = lead ? `the base view ${percent(views[0].weight)}, the others ` : "";
  return used.length === views.length ? `All ${views.length} views count: ${first}${share}.`
    : `${used.length} of ${views.length} views count: ${first}${share}. The paler ones are not used.`;
}

function votes(views) {
  const counts = new Map();
  for (const v of views) counts.set(v.label, (counts.get(v.label) ?? 0) + 1);
  const sorted = [...counts].sort((a, b) => b[1] - a[1]);
  const rest = sorted.slice(3).reduce((sum, [, count]) => sum + count, 0);
  const parts = sorted.slice(0, 3).map(([name, count]) => `${name} ${count}`);
  return `By themselves they say: ${parts.join(", ")}${rest ? `, others ${rest}` : ""}.`;
}
