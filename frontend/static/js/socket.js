// A websocket that is made again when it drops, after ever longer waits. A subclass says what to do
// when it is `opened`, has `heard` a message, is `lost` for now, or `refused` for good.
const PING_MS = 15_000;
const DEAD_MS = 30_000;
const LONGEST_WAIT_MS = 10_000;
const NOT_SIGNED_IN = 4401;
const NOT_ALLOWED = 4403;

export class Socket {
  ended = false; // signed out or refused: it is not made again
  #failures = 0;
  #heardAt = 0;
  #again = 0;
  #listening = new AbortController(); // to the events of the present socket

  constructor(path) {
    this.url = new URL(path, location.href);
    this.url.protocol = this.url.protocol.replace("http", "ws");
    setInterval(() => this.#check(), PING_MS);
  }

  get isOpen() {
    return this.socket?.readyState === WebSocket.OPEN;
  }

  get #isUp() {
    return this.socket?.readyState <= WebSocket.OPEN; // or connecting
  }

  connect() {
    if (this.ended || this.#isUp) return;
    this.disconnect();
    const { signal } = (this.#listening = new AbortController());
    this.#heardAt = performance.now();
    this.socket = new WebSocket(this.url);
    this.socket.addEventListener("open", () => this.opened(), { signal });
    this.socket.addEventListener("message", (event) => this.#heard(event.data), { signal });
    this.socket.addEventListener("close", (event) => this.#closed(event.code), { signal });
  }

  // Until `connect`.
  disconnect() {
    clearTimeout(this.#again);
    this.#listening.abort();
    this.socket?.close();
  }

  send(message) {
    this.socket.send(JSON.stringify(message));
  }

  // Answered when the server has looked at the session.
  ping() {
    this.send({ type: "ping" });
  }

  signedOut() {
    location.assign(`/account/login/?next=${encodeURIComponent(location.pathname + location.search)}`);
  }

  #heard(text) {
    this.#heardAt = performance.now();
    this.#failures = 0;
    this.heard(JSON.parse(text));
  }

  // The browser may not notice for minutes that the other end is gone.
  #check() {
    if (this.#isUp && performance.now() - this.#heardAt > DEAD_MS) {
      this.disconnect();
      this.#dropped();
    } else if (this.isOpen) this.ping();
  }

  #closed(code) {
    this.ended = code === NOT_SIGNED_IN || code === NOT_ALLOWED;
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
