// The service over HTTP. What it refuses is an error with a sentence for people.

const TRIES = 4;
const wait = (seconds) => new Promise((done) => setTimeout(done, 1000 * seconds));

export class Refusal extends Error {
  constructor(status, code, message) {
    super(message);
    Object.assign(this, { status, code });
  }
}

/** A key of one request, so that a repeated one teaches nothing. */
export function newKey() {
  const letters = crypto.getRandomValues(new Uint8Array(16));
  return `page-${Array.from(letters, (x) => x.toString(16).padStart(2, "0")).join("")}`;
}

export class Api {
  token = "";

  async call(method, path, { json, body, type, key, query } = {}) {
    const headers = {};
    if (this.token) headers.Authorization = `Bearer ${this.token}`;
    if (json !== undefined) [body, type] = [JSON.stringify(json), "application/json"];
    if (type) headers["Content-Type"] = type;
    if (key) headers["Idempotency-Key"] = key;
    const search = query ? `?${new URLSearchParams(query)}` : "";
    for (let tried = 1; ; tried += 1) {
      let answer;
      try {
        answer = await fetch(`.${path}${search}`, { method, headers, body, cache: "no-store" });
      } catch {
        throw new Refusal(0, "network", "The server does not answer. Start it again, then press Ask.");
      }
      if (answer.ok) return answer;
      const busy = answer.status === 429 || answer.status === 503;
      if (busy && tried < TRIES) {
        await wait(Math.min(10, Number(answer.headers.get("Retry-After")) || 1));
        continue;
      }
      throw await refusal(answer);
    }
  }

  async json(...request) {
    return (await this.call(...request)).json();
  }

  info() { return this.json("GET", "/v1/info"); }
  streams() { return this.json("GET", "/v1/streams"); }
  create(settings) { return this.json("POST", "/v1/streams", { json: settings }); }
  facts(id) { return this.json("GET", `/v1/streams/${encodeURIComponent(id)}`); }
  state(id) { return this.json("GET", `/v1/streams/${encodeURIComponent(id)}/state`); }
  history(id, last) {
    return this.json("GET", `/v1/streams/${encodeURIComponent(id)}/history`, { query: { last } });
  }

  /** Freeze, unfreeze or reset. */
  change(id, what) {
    return this.json("POST", `/v1/streams/${encodeURIComponent(id)}/${what}`, { key: newKey() });
  }

  async export(id) {
    return (await this.call("GET", `/v1/streams/${encodeURIComponent(id)}/export`)).blob();
  }

  /** What is learned from is learned from once, however often it is sent. */
  predict(id, photo, { learn, truth }) {
    const query = { learn, once: learn, explain: true, thumbnails: 80 };
    if (truth) query.label = truth;
    const type = photo.type.startsWith("image/") ? photo.type : "application/octet-stream";
    return this.json("POST", `/v1/streams/${encodeURIComponent(id)}/predict`,
      { body: photo, type, query });
  }
}

async function refusal(answer) {
  try {
    const { code, message } = (await answer.json()).error;
    const text = message.charAt(0).toUpperCase() + message.slice(1);
    return new Refusal(answer.status, code, /[.!?]$/.test(text) ? text : `${text}.`);
  } catch {
    return new Refusal(answer.status, "unknown", `The server answered ${answer.status}. Try again.`);
  }
}
