const cards = [...document.querySelectorAll("#check .card")];
const classes = new Set([...document.querySelectorAll("#classes option")].map((o) => o.value));
const spelled = new Map([...classes].map((name) => [name.toLowerCase(), name]));
const WRONG = ""; // what an image is that was not named
const key = "adte look " + cards.map((c) => c.dataset.path + c.dataset.label).join("\n");
const storage = { // a browser may forbid it to files
  get() { try { return JSON.parse(localStorage.getItem(key)) || {}; } catch { return {}; } },
  set(value) { try { localStorage.setItem(key, JSON.stringify(value)); } catch { /* not kept */ } },
};
let said = storage.get(); // what an image is, by its path; other words than classes too

function percent(x) { return `${Math.round(100 * x)} %`; }

/* The interval of a share of n, 95 %, by Wilson. */
function interval(right, n) {
  const z = 1.96, p = right / n, middle = p + z * z / (2 * n), all = 1 + z * z / n;
  const far = z * Math.sqrt(p * (1 - p) / n + z * z / (4 * n * n));
  return [(middle - far) / all, (middle + far) / all];
}

function show() {
  let right = 0, sure = 0, done = 0, named = 0;
  for (const card of cards) {
    const { path, label, confidence } = card.dataset, is = said[path];
    const good = is === label;
    card.classList.toggle("right", good);
    card.classList.toggle("wrong", is !== undefined && !good);
    for (const button of card.querySelectorAll("button"))
      button.setAttribute("aria-pressed", is !== undefined && good === (button.value === "right"));
    if (is === undefined) continue;
    card.querySelector("input").value = good ? "" : is;
    done += 1, right += good, named += classes.has(is), sure += Number(confidence);
  }
  let text = `None of ${cards.length} checked yet.`;
  if (done) {
    const [low, high] = interval(right, done);
    text = `${done} of ${cards.length} checked: ${right} right, ${percent(right / done)} `
      + `(95 % interval: ${percent(low)} to ${percent(high)}). `
      + `Their mean confidence is ${percent(sure / done)}.`;
    const unnamed = done - named;
    if (unnamed) text += ` Not in checked.csv: ${unnamed} wrong without a class of the list; `
      + "name those that you can, or a calibration sees too few wrong labels.";
  }
  document.querySelector("#score").textContent = text;
  document.querySelector("#save").disabled = !named;
  document.querySelector("#clear").disabled = !done;
}

function say(path, is) {
  if (is === undefined) delete said[path];
  else said[path] = is;
  storage.set(said);
  show();
}

for (const card of cards) {
  const { path, label, number } = card.dataset;
  const small = document.querySelector(`#image-${number}`);
  if (small) card.querySelector("img").src = small.src;
  const input = card.querySelector("input");
  const [right, wrong] = card.querySelectorAll("button");
  right.addEventListener("click", () => say(path, said[path] === label ? undefined : label));
  wrong.addEventListener("click", () => {
    if (said[path] === WRONG) say(path, undefined);
    else if ([undefined, label].includes(said[path])) say(path, WRONG);
  });
  input.addEventListener("change", () => {
    const word = input.value.trim();
    const is = classes.has(word) ? word : spelled.get(word.toLowerCase()) ?? word;
    say(path, is === "" ? undefined : is);
  });
}

// As `escape_cell` in adte/files/rows.py does it: a spreadsheet is to run no text.
const FORMULA = /^'* *[=+\-@\t\r\n\uff1d\uff0b\uff0d\uff20]/;

function cell(text) {
  const safe = FORMULA.test(text) ? `'${text}` : text;
  return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

document.querySelector("#save")?.addEventListener("click", () => {
  const rows = cards.map((c) => [c.dataset.path, said[c.dataset.path]])
    .filter(([, is]) => classes.has(is));
  const text = [["path", "label"], ...rows].map((r) => r.map(cell).join(",") + "\n").join("");
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
  link.download = "checked.csv";
  link.click();
  URL.revokeObjectURL(link.href);
});

document.querySelector("#clear")?.addEventListener("click", () => {
  said = {};
  for (const card of cards) card.querySelector("input").value = "";
  storage.set(said);
  show();
});

const slider = document.querySelector("#up-to");
slider.addEventListener("input", () => {
  document.querySelector("output[for=up-to]").textContent = `${slider.value} %`;
  for (const card of document.querySelectorAll("details .card"))
    card.hidden = 100 * Number(card.dataset.confidence) > Number(slider.value);
});

if (cards.length) show();
