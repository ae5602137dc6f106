// <live-part topic tenant query seen>: a part of a page that follows its topic. One socket for all of
// them, made again when it drops; each part goes on after the last `seq` that it had.
// News replace its content (`html`), have it fetched anew (`mark`), or are an event of its own (`live`).
const PING_MS = 15_000;
const DEAD_MS = 30_000;
const PAUSE_MS = 60_000; // hidden for so long, a tab needs no socket
const LONGEST_WAIT_MS = 10_000;
const NOT_SIGNED_IN = 4401;
const NOT_ALLOWED = 4403;

class Link {
  #parts = new Map(); // id -> LivePart
  #ids = 0;
  #failures = 0;
  #heardAt = 0;
  #ended = false;

  constructor() {
    setInterval(() => this.#ping(), PING_MS);
    document.addEventListener("visibilitychange", () => this.#looked());
  }

  join(part) {
    part.watch = String(++this.#ids);
    this.#parts.set(part.watch, part);
    if (this.#open) this.#watch(part);
    else if (!this.socket) this.#connect();
  }

  leave(part) {
    this.#parts.delete(part.watch);
    if (this.#open) this.#send({ type: "unwatch", id: part.watch });
  }

  get #open() {
    return this.socket?.readyState === WebSocket.OPEN;
  }

  #connect() {
    if (this.#ended || this.socket || !this.#parts.size) return;
    clearTimeout(this.again);
    const url = new URL("/ws/live", location.href);
    url.protocol = url.protocol.replace("http", "ws");
    const socket = (this.socket = new WebSocket(url));
    this.#heardAt = performance.now();
    socket.addEventListener("open", () => socket === this.socket && this.#opened());
    socket.addEventListener("message", (event) => socket === this.socket && this.#heard(JSON.parse(event.data)));
    socket.addEventListener("close", (event) => socket === this.socket && this.#closed(event.code));
  }

  #opened() {
    for (const part of this.#parts.values()) this.#watch(part);
    this.#send({ type: "ping" }); // answered when the session was looked at
  }

  #watch(part) {
    const { topic, tenant, query } = part.watched;
    this.#send({ type: "watch", id: part.watch, topic, tenant, query, after: part.seq });
  }

  #send(message) {
    this.socket.send(JSON.stringify(message));
  }

  #heard(message) {
    this.#heardAt = performance.now();
    this.#failures = 0;
    this.#say("Live");
    if (message.type !== "news") return;
    const part = this.#parts.get(message.id);
    if (!part) return;
    part.seq = message.seq;
    part.take(message.data);
  }

  #ping() {
    if (!this.socket) return;
    if (performance.now() - this.#heardAt > DEAD_MS) this.#drop();
    else if (this.#open) this.#send({ type: "ping" });
  }

  // The browser may not notice for minutes that the other end is gone.
  #drop() {
    const dead = this.socket;
    this.#closed(0);
    dead.close();
  }

  #closed(code) {
    this.socket = undefined;
    if (code === NOT_SIGNED_IN) {
      this.#ended = true;
      return location.assign(`/account/login/?next=${encodeURIComponent(location.pathname + location.search)}`);
    }
    if (code === NOT_ALLOWED) {
      this.#ended = true;
      return this.#say("Not live");
    }
    this.#say("Reconnecting");
    const longest = Math.min(LONGEST_WAIT_MS, 250 * 2 ** this.#failures++);
    this.again = setTimeout(() => this.#connect(), longest * (0.5 + Math.random() / 2));
  }

  #looked() {
    clearTimeout(this.pausing);
    if (document.hidden) this.pausing = setTimeout(() => this.#pause(), PAUSE_MS);
    else this.#connect();
  }

  #pause() {
    clearTimeout(this.again);
    if (this.#ended || !this.#parts.size) return;
    const socket = this.socket;
    this.socket = undefined;
    socket?.close();
    this.#say("Paused");
  }

  #say(state) {
    for (const shown of document.querySelectorAll("[data-live]")) {
      if (shown.dataset.state === state) continue;
      shown.hidden = false;
      shown.dataset.state = shown.textContent = state;
    }
  }
}
const link = new Link();

// What somebody is about to use stays as it is: an open dialog, the field that he types in.
const morphing = {
  morphStyle: "innerHTML",
  ignoreActiveValue: true,
  callbacks: { beforeNodeMorphed: (old) => !(old instanceof HTMLDialogElement && old.open) },
};

class LivePart extends HTMLElement {
  seq = "";

  connectedCallback() {
    this.seen = this.getAttribute("seen");
    link.join(this);
  }

  disconnectedCallback() {
    link.leave(this);
  }

  get watched() {
    const of = (name) => this.getAttribute(name) ?? "";
    return { topic: of("topic"), tenant: of("tenant"), query: of("query") };
  }

  take(data) {
    if (data.html !== undefined) Idiomorph.morph(this, data.html, morphing);
    else if (data.missed || (data.mark && data.mark !== this.seen)) this.fetch();
    if (data.mark) this.seen = data.mark;
    this.dispatchEvent(new CustomEvent("live", { detail: data, bubbles: true }));
  }

  // Take this part, by its id, from the page as it is now. News that come meanwhile are fetched after.
  async fetch() {
    this.stale = true;
    if (this.fetching) return;
    this.fetching = true;
    while (this.stale) {
      this.stale = false;
      const answer = await fetch(location.href).catch(() => undefined);
      if (!answer?.ok) break;
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      const part = page.getElementById(this.id);
      if (part) Idiomorph.morph(this, part.innerHTML, morphing);
    }
    this.fetching = false;
  }
}
customElements.define("live-part", LivePart);
