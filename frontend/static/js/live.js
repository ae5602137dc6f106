// <live-part topic tenant every src seen>: a part of a page that follows its topic. The page has one
// socket, which says that a topic has changed, or the marks of the requests that ended. Each part then
// fetches its current content from the console, at most once in `every` seconds and only while the tab
// is visible: from `src`, else from its page, which answers 304 if it is still as `seen`.
import { interrupted, restored } from "./interruption.js";
import { morphing } from "./morphing.js";
import { Socket } from "./socket.js";

const PAUSE_MS = 60_000; // a tab that was hidden for this long closes its socket
const MOST = 50; // rows of requests to fetch at once

class Link extends Socket {
  #parts = new Map(); // id -> LivePart
  #ids = 0;
  #held = false;

  constructor() {
    super("/ws/live", "live", document.querySelector("live-part")?.getAttribute("tenant") ?? "");
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

  handle(message) {
    restored();
    this.#say("Live");
    if (message.type === "pong") this.#retry();
    if (message.type !== "news") return;
    const part = this.#parts.get(message.id);
    if (!part) return;
    part.seq = message.seq;
    part.update(message.data);
  }

  lost() {
    this.#say("Reconnecting");
    interrupted();
  }

  refused() {
    restored();
    this.#say("Not live");
  }

  // The user has paused a list of requests, although the socket is open.
  hold(held) {
    this.#held = held;
    if (this.isOpen) this.#say("Live");
  }

  #watch(part) {
    this.send({ type: "watch", id: part.watch, topic: part.getAttribute("topic"), after: part.seq });
  }

  // Retry what could not be fetched before.
  #retry() {
    for (const part of this.#parts.values()) part.retry();
  }

  #looked() {
    clearTimeout(this.pausing);
    if (document.hidden) {
      this.pausing = setTimeout(() => this.#pause(), PAUSE_MS);
    } else {
      this.connect();
      this.#retry();
    }
  }

  #pause() {
    if (this.ended || !this.#parts.size) return;
    this.disconnect();
    restored();
    this.#say("Paused");
  }

  #say(socket) {
    const state = socket === "Live" && this.#held ? "Paused" : socket;
    for (const shown of document.querySelectorAll("[data-live]")) {
      if (shown.dataset.state === state) continue;
      shown.hidden = false;
      shown.dataset.state = shown.textContent = state;
    }
  }
}
const link = new Link();
document.addEventListener("hold", (event) => link.hold(event.detail));


// The console's answer; undefined if it cannot be fetched now.
async function textOf(address, headers = {}) {
  try {
    const answer = await fetch(address, { headers: { "HX-Request": "true", ...headers } });
    if (answer.headers.has("HX-Redirect")) link.signedOut();
    if (answer.status < 500) return answer.ok ? await answer.text() : "";
  } catch {
    // the console cannot be reached
  }
}

class LivePart extends HTMLElement {
  seq = "";
  #stale = false; // the content of `src` (or of the page) has changed
  #lost = false; // the whole part must be fetched, from the page
  #ended = []; // marks of requests whose rows are to be fetched
  #askedAt = -Infinity;

  connectedCallback() {
    link.join(this);
  }

  disconnectedCallback() {
    link.leave(this);
  }

  // The topic has changed, or these requests ended.
  update({ ended, more, missed }) {
    if (missed) return void this.fetch();
    if (ended) {
      this.#ended.push(...ended);
      more += this.#ended.splice(0, Math.max(0, this.#ended.length - MOST)).length;
      if (more) this.#shown({ rows: [{ more }] });
    }
    this.#stale = true;
    this.freshen();
  }

  // Fetch the whole part, from its page.
  fetch() {
    this.#lost = true;
    return this.freshen();
  }

  retry() {
    if (!this.asking) this.#lost ? this.fetch() : this.freshen();
  }

  // Fetch what is out of date, one request at a time. What cannot be fetched is tried again with the
  // socket's next message.
  freshen() {
    this.asking ??= this.#ask().finally(() => (this.asking = undefined));
    return this.asking;
  }

  async #ask() {
    while ((this.#stale || this.#lost) && !document.hidden) {
      const wait = this.#askedAt + this.getAttribute("every") * 1000 - performance.now();
      if (wait > 0) await new Promise((resolve) => setTimeout(resolve, wait));
      this.#askedAt = performance.now();
      const whole = this.#lost || !this.hasAttribute("src");
      if (!(await (whole ? this.#askPage() : this.#askPart()))) break;
    }
  }

  async #askPage() {
    const seen = this.getAttribute("seen");
    [this.#stale, this.#lost, this.#ended] = [false, false, []];
    const html = await textOf(location.href, seen ? { "If-None-Match": `"${seen}"` } : {});
    if (html === undefined) return !(this.#lost = true);
    const part = new DOMParser().parseFromString(html, "text/html").getElementById(this.id);
    if (!part) return true; // 304, or another page was answered
    if (seen) this.setAttribute("seen", part.getAttribute("seen"));
    Idiomorph.morph(this, part.innerHTML, morphing);
    this.#shown({});
    return true;
  }

  async #askPart() {
    const address = new URL(this.getAttribute("src"), location.href);
    const asked = this.#ended;
    [this.#stale, this.#ended] = [false, []];
    for (const mark of asked) address.searchParams.append("ended", mark);
    const text = await textOf(address);
    if (text === undefined) {
      [this.#stale, this.#ended] = [true, [...asked, ...this.#ended]];
      return false;
    }
    if (!text.startsWith("{")) return true;
    const data = JSON.parse(text);
    if (data.html !== undefined) Idiomorph.morph(this, data.html, morphing);
    this.#shown(data);
    return true;
  }

  #shown(data) {
    this.dispatchEvent(new CustomEvent("live", { detail: data, bubbles: true }));
  }
}
customElements.define("live-part", LivePart);
