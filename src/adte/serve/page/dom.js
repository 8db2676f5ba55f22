// Elements in few words, and numbers as people read them.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, props, children) {
  for (const [name, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name.startsWith("--")) node.style.setProperty(name, value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}

/** An HTML element: attributes, --variables of CSS and on… handlers, then children. */
export function h(tag, props = {}, ...children) {
  return fill(document.createElement(tag), props, children);
}

/** The same for SVG. */
export function s(tag, props = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), props, children);
}

export const byId = (id) => document.getElementById(id);

export function percent(share) {
  const value = 100 * share;
  return value > 0 && value < 0.1 ? "<0.1 %" : `${value.toFixed(value < 9.95 ? 1 : 0)} %`;
}

export const number = (value) => value.toLocaleString("en");
export const photos = (count) => `${number(count)} ${count === 1 ? "photo" : "photos"}`;

export function bytes(count) {
  if (count < 1000) return `${count} B`;
  return count < 1e6 ? `${(count / 1e3).toFixed(1)} kB` : `${(count / 1e6).toFixed(1)} MB`;
}

/** Indices of the largest values, first the largest. */
export function largest(values, count = values.length) {
  return [...values.keys()].sort((a, b) => values[b] - values[a]).slice(0, count);
}

/** A table cell with a number and a bar; `mark` is a share at which a line stands. */
export function barCell(share, text, kind = "", mark = null) {
  return h("td", { class: `bar ${kind}` }, h("div", {},
    h("span", { class: "track", "aria-hidden": "true", "--share": Math.min(1, share) },
      mark === null ? null : h("i", { "--at": mark })),
    h("span", { class: "value" }, text)));
}
