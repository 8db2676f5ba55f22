// The page: a form, a photo, an answer, and the stream behind them.

import { answersAsCsv, listAnswers, showAnswer, sayAnswer } from "./answer.js";
import { Api } from "./api.js";
import { byId, bytes, h, number, photos } from "./dom.js";
import { LAST, Live } from "./live.js";
import { showViews } from "./views.js";
import { fillForm, matches, nameFor, plain, settings } from "./wanted.js";

const EVERY = 2000; // milliseconds from one look at the stream to the next
const FIRST = ["tilt", "adte", "se", "zero-shot"];

const api = new Api();
const live = new Live(byId("stream-body"), act);
let info = null;
let streams = []; // facts of all, where the token allows it
let stream = null; // facts of the open one
let photo = null; // { file, name, url, learned: Map of stream to the answer when it was learned }
let shown = null; // the photo whose answer is on the page
let answers = []; // { photo, answer, facts }: the last one to each photo, in order
let turn = 0; // the latest question; older answers are not shown
let queue = [];

// ------------------------------------------------------------------ asking

const known = (wanted) => (stream && matches(stream, wanted) ? stream
  : streams.find((facts) => matches(facts, wanted) && plain(facts, info)));

/** The stream of these settings: the open one, one that is there, or a new one. */
async function streamFor(wanted) {
  const found = known(wanted);
  if (found) return found;
  const name = nameFor(wanted);
  for (let i = 1; ; i += 1) {
    const id = i > 1 ? `${name}-${i}` : name;
    try {
      const made = await api.create({ id, ...wanted });
      if (made.token) tell("note-box", `The token of the stream ${made.id}, shown once: `, h("code", {}, made.token));
      delete made.token;
      streams.push(made);
      return made;
    } catch (error) {
      if (error.code !== "exists" || i > 50) throw error;
      const other = await api.facts(id); // made since the list was read
      if (!matches(other, wanted) || !plain(other, info)) continue;
      streams.push(other);
      return other;
    }
  }
}

/** Say something, or nothing; a token, which is shown once, stays unless nothing at all is given. */
function tell(kind, ...words) {
  const notes = kind === undefined ? [] : byId("alert").querySelectorAll(".note-box");
  byId("alert").replaceChildren(...notes, ...(kind ? [h("p", { class: kind }, ...words)] : []));
}

function refuse(error, from) {
  const field = from ?? (error.code === "token" ? "token" : null);
  tell("alert", error.message);
  byId("alert").scrollIntoView({ block: "nearest" });
  if (field && !byId(field).closest("[hidden]")) byId(field).focus();
}

function busy(text) {
  byId("answer").setAttribute("aria-busy", String(Boolean(text)));
  byId("progress").hidden = !text;
  byId("progress-text").textContent = text ?? "";
}

/** What is missing before a question can be asked. */
function missing({ classes }) {
  if (!classes.length) return ["Type the names of the classes first, then press Ask.", "classes"];
  if (!photo) return ["Give a photo first: drop it here, paste it, or choose it.", "file"];
  const most = info?.limits.max_bytes ?? Infinity;
  if (photo.file.size <= most) return null;
  return [`The photo has ${bytes(photo.file.size)}; this server takes ${bytes(most)}. Make it smaller.`, "file"];
}

/** Ask about the photo; whether there was an answer. */
async function ask({ learn = byId("learn").checked } = {}) {
  const wanted = settings();
  const lacks = missing(wanted);
  if (lacks) {
    refuse({ message: lacks[0] }, lacks[1]);
    return false;
  }
  const [now, asked] = [(turn += 1), photo];
  tell(null);
  if (matchMedia("(max-width: 56rem)").matches) byId("answer").scrollIntoView();
  busy(`Looking at ${number(wanted.views)} ${wanted.views === 1 ? "view" : "views"} of the photo…`);
  let facts = null;
  try {
    facts = await streamFor(wanted);
    const answer = await predict(facts, asked, learn, byId("truth").value);
    if (now !== turn) return true;
    enter(facts);
    show(answer, facts, asked);
    if (learn && !answer.repeated) byId("truth").value = ""; // else it was not counted
  } catch (error) {
    if (facts && error.code === "stream") gone(facts, error);
    if (now === turn) {
      if (shown !== asked) clear();
      refuse(error);
    }
    return false;
  } finally {
    if (now === turn) busy();
  }
  await look();
  return true;
}

/** A photo is learned once by each stream; what it said then is shown again, or is asked for anew. */
async function predict(facts, asked, learn, truth) {
  if (!learn) return api.predict(facts.id, asked.file, { learn: false });
  const answer = await api.predict(facts.id, asked.file, { learn: true, truth });
  if (!answer.repeated) {
    asked.learned.set(facts.id, answer);
    return answer;
  }
  const first = asked.learned.get(facts.id);
  if (first?.seq === answer.seq) return { ...first, repeated: true };
  const { predictions } = await api.predict(facts.id, asked.file, { learn: false });
  return { ...answer, predictions };
}

function show(answer, facts, asked) {
  const [found] = answer.predictions;
  shown = asked;
  const row = { photo: asked, answer, facts };
  const at = answers.findIndex((other) => other.photo === asked);
  answers.splice(at < 0 ? answers.length : at, 1, row);
  byId("answers").hidden = answers.length < 2;
  byId("answers-body").replaceChildren(...listAnswers(answers, (r) => show(r.answer, r.facts, r.photo), asked));
  byId("answer-body").replaceChildren(...showAnswer(answer, facts));
  byId("said").textContent = sayAnswer(answer);
  byId("why").hidden = !found.explain;
  if (found.explain) byId("why-body").replaceChildren(...showViews(found.explain, asked.url, facts.method, found.index));
}

/** Take the answer to another photo away. */
function clear() {
  shown = null;
  byId("answer-body").replaceChildren(h("p", { class: "calm" }, "There is no answer to this photo yet."));
  byId("why").hidden = true;
}

// ------------------------------------------------------------------ photos

/** Photos come in, are shown, and are asked about one after the other. */
async function take(files) {
  const found = [...files].filter((file) => file.type.startsWith("image/") || !file.type);
  if (!found.length) {
    refuse({ message: "That is no picture. Give a photo, such as a JPEG or a PNG." });
    return;
  }
  queue.push(...found);
  if (queue.length > found.length) return; // those before it are under way
  while (queue.length) {
    put(queue[0]);
    say("empty", queue.length > 1 ? `${queue.length - 1} more to come.` : "");
    if (!await ask()) {
      const rest = queue.splice(1).length; // they would fare no better
      if (rest) byId("alert").lastChild?.append(` Not asked about: ${photos(rest)} after it.`);
    }
    queue.shift();
  }
  say("empty", "");
}

function put(file) {
  photo = { file, name: file.name || "photo", url: URL.createObjectURL(file), learned: new Map() };
  const preview = byId("preview");
  preview.src = photo.url;
  preview.alt = file.name ? `Your photo ${file.name}` : "Your photo";
  preview.hidden = false;
}

// ------------------------------------------------------------------ the stream

/** Make a stream the open one, and put its name into the address. */
function enter(facts) {
  stream = facts;
  streams = streams.map((other) => (other.id === facts.id ? facts : other));
  if (hash() !== facts.id) history.replaceState(null, "", `#stream=${facts.id}`);
  update();
}

async function open(id) {
  try {
    const facts = await api.facts(id);
    fillForm(facts);
    enter(facts);
    tell();
    await look();
  } catch (error) {
    refuse(error);
  }
}

async function act(what) {
  const id = stream.id;
  try {
    if (what === "export") {
      save(await api.export(id), `${id}.adte`);
      return;
    }
    if (what === "reset" && !await sure()) return;
    const facts = await api.change(id, what);
    if (stream?.id !== id) return; // another one was opened meanwhile
    enter(facts);
    tell();
    await look();
  } catch (error) {
    refuse(error);
  }
}

function sure() {
  const dialog = byId("sure");
  byId("sure-text").textContent = `${stream.id} has learned from ${photos(stream.seen)}. This cannot be undone.`;
  dialog.returnValue = "no";
  dialog.showModal();
  return new Promise((done) => dialog.addEventListener("close", () => done(dialog.returnValue === "yes"), { once: true }));
}

function save(blob, name) {
  const url = URL.createObjectURL(blob);
  h("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

/** Look at the open stream, and at the server behind it. */
async function look() {
  if (!stream) return;
  const facts = stream;
  try {
    const [state, past] = await Promise.all([api.state(facts.id), api.history(facts.id, LAST)]);
    server(true);
    if (facts !== stream) return;
    Object.assign(facts, { seen: state.seen, frozen: state.frozen });
    live.show(facts, state, past);
    update();
  } catch (error) {
    if (error.status === 0) server(false);
    else if (error.status === 401 || error.status === 404) gone(facts, error);
  }
}

/** One look after the other, as long as somebody sees the page. */
async function keepLooking() {
  if (document.visibilityState === "visible") await (info ? look() : begin());
  setTimeout(keepLooking, EVERY);
}

function gone(facts, error) {
  streams = streams.filter(({ id }) => id !== facts.id);
  if (facts === stream) {
    stream = null;
    byId("stream-body").replaceChildren(h("p", { class: "calm" }, error.message));
  }
  update();
}

// ------------------------------------------------------------------ the form

function server(good) {
  byId("server").classList.toggle("away", !good);
  say("server", good ? `${info.model} · adte ${info.version}` : "The server does not answer. Trying again…");
}

function update() {
  if (!info) return;
  const wanted = settings();
  const found = known(wanted);
  say("method-hint", info.methods.find(({ name }) => name === wanted.method)?.summary.concat(".") ?? "");
  say("which", !wanted.classes.length ? ""
    : found ? `Stream ${found.id}: ${photos(found.seen)} learned.` : "The next photo begins a new stream.");
  options("truth", ["", ...wanted.classes], (name) => name || "not known");
  options("which-stream", ["", ...streams.map(({ id }) => id)], (id) => id || "choose…", stream?.id ?? "");
  byId("streams").hidden = !streams.length;
}

function say(id, text) {
  if (byId(id).textContent !== text) byId(id).textContent = text;
}

function options(id, values, text, chosen) {
  const node = byId(id);
  const old = [...node.options].map((option) => option.value);
  const value = chosen ?? node.value;
  if (old.join("\n") !== values.join("\n")) {
    node.replaceChildren(...values.map((v) => h("option", { value: v }, text(v))));
  }
  node.value = values.includes(value) ? value : values[0];
}

function fillMethods() {
  const names = info.methods.map(({ name }) => name);
  const first = FIRST.filter((name) => names.includes(name));
  const group = (label, list) => h("optgroup", { label }, list.map((name) => h("option", { value: name }, name)));
  const value = byId("method").value || first[0];
  byId("method").replaceChildren(group("often used", first), group("others", names.filter((n) => !first.includes(n))));
  byId("method").value = names.includes(value) ? value : names[0];
  byId("views").max = info.limits.max_views;
}

// ------------------------------------------------------------------ beginning

async function begin() {
  try {
    info = await api.info();
  } catch (error) {
    server(false);
    if (error.status) say("server", error.message);
    return;
  }
  server(true);
  fillMethods();
  byId("take").hidden = navigator.maxTouchPoints === 0;
  byId("access").hidden = !info.tokens;
  update();
  if (!info.tokens || api.token) await enterToken();
}

/** What the token allows: all streams, one by its name, or nothing. */
async function enterToken() {
  tell();
  try {
    ({ streams } = await api.streams());
    byId("by-name").hidden = true;
  } catch (error) {
    streams = [];
    byId("by-name").hidden = error.status !== 403;
    if (error.status === 401) refuse({ message: "The server does not know this token. Check it." }, "token");
    else if (error.status !== 403) refuse(error);
  }
  update();
  await openHash();
}

/** The stream that the address names. */
const hash = () => new URLSearchParams(location.hash.slice(1)).get("stream");

async function openHash() {
  if (hash() && hash() !== stream?.id) await open(hash());
}

function listen() {
  const on = (id, event, call) => byId(id).addEventListener(event, call);
  on("ask", "submit", (event) => { event.preventDefault(); ask(); });
  on("classes", "input", update);
  for (const id of ["views", "protocol"]) on(id, "change", update);
  on("method", "change", () => { update(); if (photo && settings().classes.length) ask({ learn: false }); });
  for (const id of ["file", "camera"]) {
    on(id, "change", ({ target }) => { if (target.files.length) take(target.files); target.value = ""; });
  }
  on("token", "change", ({ target }) => {
    api.token = target.value.trim();
    sessionStorage.setItem("token", api.token);
    if (api.token) enterToken();
  });
  on("token", "keydown", (event) => {
    if (event.key !== "Enter") return;
    event.preventDefault(); // it is no question yet
    event.target.dispatchEvent(new Event("change"));
  });
  on("save-answers", "click", () => save(new Blob([answersAsCsv(answers)], { type: "text/csv" }), "answers.csv"));
  on("open", "click", () => { if (byId("stream-id").value.trim()) open(byId("stream-id").value.trim()); });
  on("stream-id", "keydown", (event) => { if (event.key === "Enter") { event.preventDefault(); byId("open").click(); } });
  on("which-stream", "change", ({ target }) => { if (target.value) open(target.value); });
  addEventListener("hashchange", openHash);
  addEventListener("paste", ({ clipboardData, target }) => {
    // A spreadsheet gives its cells as text and as a picture; in a field the text is meant.
    const text = target.matches?.("input, textarea") && clipboardData.types.includes("text/plain");
    if (clipboardData.files.length && !text) take(clipboardData.files);
  });
  for (const kind of ["dragenter", "dragover", "dragleave", "drop"]) {
    addEventListener(kind, (event) => {
      if (![...event.dataTransfer.types].includes("Files")) return;
      event.preventDefault();
      const out = kind === "drop" || (kind === "dragleave" && !event.relatedTarget);
      byId("drop").classList.toggle("over", !out);
      if (kind === "drop") take(event.dataTransfer.files);
    });
  }
}

api.token = sessionStorage.getItem("token") ?? "";
byId("token").value = api.token;
listen();
keepLooking();
