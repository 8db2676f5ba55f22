// What the form asks for, and which streams are just that.

import { byId } from "./dom.js";

const TEMPLATE = "a photo of a {}."; // of a stream that names none

let filled = { text: "", classes: [] }; // of the open stream: its names may hold commas, or repeat

function typed(text) {
  return [...new Set(text.split(/[\n,;]/).map((name) => name.trim()).filter(Boolean))];
}

export function settings() {
  const text = byId("classes").value;
  return { classes: text === filled.text ? filled.classes : typed(text), method: byId("method").value,
    views: Number(byId("views").value) || 64, protocol: byId("protocol").value };
}

/** Put the settings of a stream into the form. */
export function fillForm(facts) {
  byId("classes").value = facts.classes.join(facts.classes.some((name) => /[,;]/.test(name)) ? "\n" : ", ");
  filled = { text: byId("classes").value, classes: facts.classes };
  for (const name of ["method", "views", "protocol"]) byId(name).value = facts[name];
}

export function matches(facts, wanted) {
  return ["method", "views", "protocol"].every((name) => facts[name] === wanted[name])
    && facts.classes.join("\n") === wanted.classes.join("\n");
}

/** Whether the page would have made a stream the same. */
export function plain(facts, info) {
  const method = info.methods.find(({ name }) => name === facts.method);
  return facts.templates.length === 1 && facts.templates[0] === TEMPLATE && !facts.described
    && facts.seed === 0 && !facts.damaged
    && JSON.stringify(facts.options) === JSON.stringify(method?.options);
}

/** A name for a new stream. */
export function nameFor({ classes, method }) {
  const words = [...classes.slice(0, 2), method].join("-").normalize("NFKD").toLowerCase();
  return words.replace(/[^a-z0-9]+/g, "-").replace(/^-+|-+$/g, "").slice(0, 56) || "photos";
}
