// A websocket that reconnects when it drops, after growing pauses. A subclass has `opened`,
// `handle(message)`, `lost` (it will reconnect) and `refused` (it will not).
//
// It connects to the API's address, which has no sessions: the first message on each socket is a
// ticket, which the console gives to signed-in users, and fresh tickets keep it open.
const PING_MS = 15_000;
const DEAD_MS = 30_000;
const LONGEST_WAIT_MS = 10_000;
const RENEW_MS = 100_000;
const NOT_SIGNED_IN = 4401;
const NOT_ALLOWED = 4403;

export class Socket {
  ended = false; // signed out or refused: it does not reconnect
  #failures = 0;
  #activeAt = 0;
  #again = 0;
  #asking = false;
  #renewedAt = 0;
  #listening = new AbortController(); // aborts the listeners on the current socket

  // The ticket is for this `purpose` and `tenant` (a slug; "" for the whole installation).
  constructor(path, purpose, tenant = "") {
    this.url = new URL((document.documentElement.dataset.api || location.origin) + path);
    this.url.protocol = this.url.protocol.replace("http", "ws");
    this.wish = JSON.stringify({ purpose, tenant });
    setInterval(() => this.#check(), PING_MS);
  }

  get isOpen() {
    return this.socket?.readyState === WebSocket.OPEN;
  }

  get #isUp() {
    return this.#asking || this.socket?.readyState <= WebSocket.OPEN; // or connecting
  }

  async connect() {
    if (this.ended || this.#isUp) return;
    this.disconnect();
    const { signal } = (this.#listening = new AbortController());
    this.#activeAt = performance.now();
    const ticket = await this.#ask(signal);
    if (signal.aborted || this.ended) return;
    if (!ticket) return this.#dropped();
    this.#activeAt = performance.now();
    this.socket = new WebSocket(this.url);
    this.socket.addEventListener("open", () => this.#opened(ticket), { signal });
    this.socket.addEventListener("message", (event) => this.#receive(event.data), { signal });
    this.socket.addEventListener("close", (event) => this.#closed(event.code), { signal });
  }

  // Stay disconnected until `connect`.
  disconnect() {
    clearTimeout(this.#again);
    this.#listening.abort();
    this.#asking = false;
    this.socket?.close();
  }

  send(message) {
    this.socket.send(JSON.stringify(message));
  }

  // The server answers it once it has checked the ticket.
  ping() {
    this.send({ type: "ping" });
  }

  signedOut() {
    location.assign(`/account/login/?next=${encodeURIComponent(location.pathname + location.search)}`);
  }

  // A ticket; undefined if the console cannot be reached or refuses one.
  async #ask(signal) {
    this.#asking = true;
    const token = document.querySelector("[name=csrfmiddlewaretoken]")?.value ?? "";
    const headers = { "Content-Type": "application/json", "X-CSRFToken": token };
    try {
      const answer = await fetch("/tickets", { method: "POST", headers, body: this.wish, signal });
      if (answer.ok) return (await answer.json()).ticket;
      if (answer.status === 401) this.#closed(NOT_SIGNED_IN);
      if (answer.status === 403) this.#closed(NOT_ALLOWED);
    } catch {
      // the console cannot be reached
    } finally {
      if (this.#listening.signal === signal) this.#asking = false;
    }
  }

  #opened(ticket) {
    this.#renewedAt = performance.now();
    this.send({ type: "ticket", ticket });
    this.opened();
  }

  async #renew() {
    const { signal } = this.#listening;
    const ticket = await this.#ask(signal);
    if (!ticket || !this.isOpen || signal.aborted) return;
    this.#renewedAt = performance.now();
    this.send({ type: "ticket", ticket });
  }

  #receive(text) {
    this.#activeAt = performance.now();
    this.#failures = 0;
    this.handle(JSON.parse(text));
  }

  // Without pings, the browser may take minutes to notice that the server is gone.
  #check() {
    if (this.#isUp && performance.now() - this.#activeAt > DEAD_MS) {
      this.disconnect();
      this.#dropped();
    } else if (this.isOpen) {
      this.ping();
      if (!this.#asking && performance.now() - this.#renewedAt > RENEW_MS) this.#renew();
    }
  }

  #closed(code) {
    this.#asking = false;
    this.ended = code === NOT_SIGNED_IN || code === NOT_ALLOWED;
    if (this.ended) this.disconnect();
    if (code === NOT_SIGNED_IN) this.signedOut();
    else if (code === NOT_ALLOWED) this.refused();
    else this.#dropped();
  }

  #dropped() {
    this.lost();
    const longest = Math.min(LONGEST_WAIT_MS, 250 * 2 ** this.#failures++);
    this.#again = setTimeout(() => this.connect(), longest * (0.5 + Math.random() / 2));
  }
}
