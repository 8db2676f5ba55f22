// The live view of a stream: what it said over time, what it has learned, and what can be done to it.

import { barCell, bytes, h, largest, number, percent } from "./dom.js";
import { accuracy, line, timeline } from "./plots.js";

const CLASSES = 10;
export const LAST = 200;

/** A stream on the page. `act` gets "freeze", "unfreeze", "reset" or "export". */
export class Live {
  #shown = "";
  #found = null;
  #all = false;

  constructor(parent, act) {
    this.parent = parent;
    this.freeze = h("button", { type: "button", onclick: () => act(this.freeze.value) });
    this.facts = h("dl", { class: "facts" });
    this.plots = h("div", { class: "plots" });
    this.table = h("div", { class: "by-class" });
    this.node = h("div", {}, this.facts, h("div", { class: "pair" }, this.plots, this.table),
      h("div", { class: "row" }, this.freeze,
        h("button", { type: "button", onclick: () => act("export") }, "Save its state"),
        h("button", { type: "button", onclick: () => act("reset") }, "Forget what it learned")));
    new ResizeObserver(() => this.#draw()).observe(this.plots);
  }

  show(facts, state, history) {
    const found = JSON.stringify([facts.id, state, history]);
    if (found === this.#shown && this.node.isConnected) return;
    if (this.#found?.facts.id !== facts.id) this.#all = false;
    this.#shown = found;
    this.#found = { facts, state, rows: history.rows };
    if (!this.node.isConnected) this.parent.replaceChildren(this.node);
    this.facts.replaceChildren(...this.#facts());
    this.freeze.value = state.frozen ? "unfreeze" : "freeze";
    this.freeze.textContent = state.frozen ? "Learn again" : "Stop learning";
    this.table.replaceChildren(...this.#byClass());
    this.#width = 0;
    this.#draw();
  }

  #facts() {
    const { facts, state } = this.#found;
    const shown = [
      ["stream", facts.id], ["method", state.method],
      ["photos learned", number(state.seen) + (state.frozen ? ", frozen" : "")],
      ["drift of the prior", state.drift === null ? "none yet" : state.drift.toFixed(3)],
      ["accuracy", state.accuracy === null ? "no labels sent"
        : `${percent(state.accuracy)} of ${number(state.labelled)}`],
      ["state", bytes(state.bytes)],
    ];
    return shown.map(([name, value]) => h("div", {}, h("dt", {}, name),
      h("dd", { id: `fact-${name.split(" ")[0]}` }, value)));
  }

  #width = 0;

  #draw() {
    const width = Math.floor(this.plots.clientWidth) - 104;
    if (!this.#found || width < 40 || width === this.#width) return;
    this.#width = width;
    const { rows, facts, state } = this.#found;
    if (!rows.length) {
      this.plots.replaceChildren(h("p", { class: "calm" }, "No photo has been learned yet. Ask with ",
        "“Learn from it” on, and labels appear here."));
      return;
    }
    const drift = rows.map((row) => row.drift);
    const parts = [h("h3", {}, "Labels over time"), timeline(rows, facts.classes, width)];
    if (drift.some((v) => v !== null)) {
      parts.push(h("h3", {}, "Drift of the prior"),
        line(drift, "drift", "cool", width, null, (v) => v.toFixed(2)));
    }
    if (state.labelled && rows.some((row) => row.truth !== null)) {
      parts.push(h("h3", {}, "Accuracy where labels were sent"),
        line(accuracy(rows, facts.classes), "so far", "mark", width, 1, (v) => `${Math.round(100 * v)} %`));
    }
    parts.push(h("p", { class: "note" }, `The last ${rows.length === 1 ? "photo" : `${rows.length} photos`}, `,
      "the newest at the right; the darker, the surer. A cross is a label that was wrong."));
    this.plots.replaceChildren(...parts);
  }

  #byClass() {
    const { state } = this.#found;
    const { classes, counts, prior, q } = state;
    const by = largest(prior ?? counts, this.#all ? classes.length : CLASSES);
    const most = Math.max(...counts, 1);
    const top = prior ? Math.max(...prior, 2 / classes.length) : 1;
    const row = (c) => h("tr", {}, h("th", { scope: "row" }, classes[c]),
      barCell(counts[c] / most, number(counts[c]), "grey"),
      prior && barCell(prior[c] / top, percent(prior[c]), "mark", 1 / classes.length / top),
      q && barCell(q[c], q[c].toFixed(2), "cool"));
    const heads = ["class", "labels given", ...(prior ? ["prior"] : []), ...(q ? ["q"] : [])];
    const note = !prior ? (state.seen ? "This method keeps no prior." : "The prior comes with the first photo learned.")
      : `The line marks a model that favours none: ${percent(1 / classes.length)} for each class.`;
    const more = classes.length > CLASSES && h("button", { type: "button", onclick: () => {
      this.#all = !this.#all;
      this.table.replaceChildren(...this.#byClass());
      this.table.querySelector("button").focus();
    } }, this.#all ? "Show fewer" : `Show all ${number(classes.length)}`);
    return [h("h3", {}, "By class"),
      h("div", { class: "wide", tabindex: "0", role: "group", "aria-label": "Labels, prior and q by class" },
        h("table", {}, h("caption", {}, "Labels given, prior and q, by class"),
          h("thead", {}, h("tr", {}, heads.map((name) => h("th", { scope: "col" }, name)))),
          h("tbody", {}, by.map(row)))),
      h("p", { class: "note" }, note), more || ""];
  }
}
