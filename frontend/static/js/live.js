// <live-part topic tenant query seen>: a part of a page that follows its topic. One socket for all of
// them, made again when it drops; each part goes on after the last `seq` that it had.
// News replace its content (`html`), have it fetched anew (`mark`), or are an event of its own (`live`).
import { Socket } from "./socket.js";

const PAUSE_MS = 60_000; // hidden for so long, a tab needs no socket

class Link extends Socket {
  #parts = new Map(); // id -> LivePart
  #ids = 0;

  constructor() {
    super("/ws/live");
    document.addEventListener("visibilitychange", () => this.#looked());
  }

  join(part) {
    part.watch = String(++this.#ids);
    this.#parts.set(part.watch, part);
    if (this.isOpen) this.#watch(part);
    else this.connect();
  }

  leave(part) {
    this.#parts.delete(part.watch);
    if (this.isOpen) this.send({ type: "unwatch", id: part.watch });
  }

  connect() {
    if (this.#parts.size) super.connect();
  }

  opened() {
    for (const part of this.#parts.values()) this.#watch(part);
    this.ping();
  }

  heard(message) {
    this.#say("Live");
    if (message.type === "pong") this.#freshen();
    if (message.type !== "news") return;
    const part = this.#parts.get(message.id);
    if (!part) return;
    part.seq = message.seq;
    part.take(message.data);
  }

  lost() {
    this.#say("Reconnecting");
  }

  refused() {
    this.#say("Not live");
  }

  #watch(part) {
    const { topic, tenant, query } = part.watched;
    this.send({ type: "watch", id: part.watch, topic, tenant, query, after: part.seq });
  }

  // The server answers again: what could not be had from it may be had now.
  #freshen() {
    for (const part of this.#parts.values()) if (part.stale) part.fetch();
  }

  #looked() {
    clearTimeout(this.pausing);
    if (document.hidden) this.pausing = setTimeout(() => this.#pause(), PAUSE_MS);
    else this.connect();
  }

  #pause() {
    if (this.ended || !this.#parts.size) return;
    this.disconnect();
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

// The page as it is now; undefined where it cannot be had.
const pageNow = () =>
  fetch(location.href)
    .then((answer) => (answer.status < 500 ? answer.text() : undefined))
    .catch(() => undefined);

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

  // Take this part, by its id, from the page as it is now. News that come meanwhile are fetched
  // after; what cannot be had stays stale, until the server is heard again.
  async fetch() {
    this.stale = true;
    if (this.fetching) return;
    this.fetching = true;
    while (this.stale) {
      this.stale = false;
      const html = await pageNow();
      if (html === undefined) {
        this.stale = true;
        break;
      }
      const part = new DOMParser().parseFromString(html, "text/html").getElementById(this.id);
      if (part) Idiomorph.morph(this, part.innerHTML, morphing);
    }
    this.fetching = false;
  }
}
customElements.define("live-part", LivePart);
