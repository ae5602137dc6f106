// The playground's socket: one a tab, made again when it drops, each answer going on where it was.
const PING_MS = 15_000;
const LONGEST_WAIT_MS = 10_000;
const NOT_SIGNED_IN = 4401;
const NOT_ALLOWED = 4403;

export class Link {
  #answers = new Map(); // id -> { after, tokens, listen }
  #unsent = [];
  #failures = 0;
  #heardAt = 0;

  // `changed(state)` is called with Live, Reconnecting or Closed; `signedOut()` when the session has
  // ended.
  constructor(path, changed, signedOut) {
    this.url = new URL(path, location.href);
    this.url.protocol = this.url.protocol.replace("http", "ws");
    this.changed = changed;
    this.signedOut = signedOut;
    this.#connect();
    setInterval(() => this.#ping(), PING_MS);
  }

  // Generate an answer; `listen(message)` is called with everything that is said of it.
  start(id, request, listen) {
    this.#answers.set(id, { after: 0, tokens: 0, listen });
    this.#send({ type: "start", id, ...request });
  }

  // Hear an answer that was begun earlier, from its beginning.
  resume(id, listen) {
    this.#answers.set(id, { after: 0, tokens: 0, listen });
    if (this.socket.readyState === WebSocket.OPEN) this.#resume(id);
  }

  stop(id) {
    this.#send({ type: "stop", id });
  }

  #connect() {
    const socket = (this.socket = new WebSocket(this.url));
    socket.addEventListener("open", () => this.#opened());
    socket.addEventListener("message", (event) => socket === this.socket && this.#heard(event.data));
    socket.addEventListener("close", (event) => socket === this.socket && this.#closed(event.code));
  }

  #opened() {
    this.#heardAt = performance.now();
    this.#send({ type: "ping" }); // answered when the session was looked at
    const waiting = new Set(this.#unsent.filter((one) => one.type === "start").map((one) => one.id));
    for (const id of this.#answers.keys()) {
      if (!waiting.has(id)) this.#resume(id);
    }
    for (const message of this.#unsent.splice(0)) this.#send(message);
  }

  #resume(id) {
    const { after, tokens } = this.#answers.get(id);
    this.#send({ type: "resume", id, after, tokens });
  }

  #send(message) {
    if (this.socket.readyState === WebSocket.OPEN) this.socket.send(JSON.stringify(message));
    else if (message.type !== "ping") this.#unsent.push(message);
  }

  #heard(text) {
    this.#heardAt = performance.now();
    this.#failures = 0;
    const message = JSON.parse(text);
    if (message.type === "pong") return this.changed("Live");
    const answer = this.#answers.get(message.id);
    if (!answer) return;
    if (message.type === "delta") {
      answer.after = message.seq;
      answer.tokens = message.token_seq ?? 0;
    }
    if (message.type === "done" || message.type === "error") this.#answers.delete(message.id);
    answer.listen(message);
  }

  #ping() {
    if (this.socket.readyState !== WebSocket.OPEN) return;
    if (performance.now() - this.#heardAt > 2 * PING_MS) {
      const dead = this.socket;
      this.#closed(0);
      dead.close();
    } else this.#send({ type: "ping" });
  }

  #closed(code) {
    if (code === NOT_SIGNED_IN) return this.signedOut();
    if (code === NOT_ALLOWED) return this.#end("You may no longer use this playground.");
    this.changed("Reconnecting");
    const longest = Math.min(LONGEST_WAIT_MS, 250 * 2 ** this.#failures++);
    setTimeout(() => this.#connect(), longest * (0.5 + Math.random() / 2));
  }

  #end(message) {
    this.changed("Closed");
    for (const [id, answer] of this.#answers) answer.listen({ type: "error", id, code: "closed", message });
    this.#answers.clear();
  }
}
