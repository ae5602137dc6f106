// The playground's socket, one per tab. After a drop, each answer continues where it was.
import { Socket } from "../socket.js";

const NOTHING = { after: 0, tokens: 0, calls: 0 };

export class Link extends Socket {
  #answers = new Map(); // id -> { after, tokens, calls, listen }
  #unsent = [];

  // `changed(state)` is called with Live, Reconnecting or Closed.
  constructor(slug, changed) {
    super(`/ws/playground/${slug}`, "playground", slug);
    this.changed = changed;
    this.connect();
  }

  // Generate an answer; `listen(message)` is called with each message about it.
  start(id, request, listen) {
    this.#answers.set(id, { ...NOTHING, listen });
    this.#say({ type: "start", id, ...request });
  }

  // Receive an answer that was begun earlier, from its start.
  resume(id, listen) {
    this.#answers.set(id, { ...NOTHING, listen });
    if (this.isOpen) this.#resume(id);
  }

  stop(id) {
    this.#say({ type: "stop", id });
  }

  opened() {
    this.ping(); // its answer sets the state to Live
    const waiting = new Set(this.#unsent.filter((one) => one.type === "start").map((one) => one.id));
    for (const id of this.#answers.keys()) {
      if (!waiting.has(id)) this.#resume(id);
    }
    for (const message of this.#unsent.splice(0)) this.send(message);
  }

  handle(message) {
    if (message.type === "pong") return this.changed("Live");
    const answer = this.#answers.get(message.id);
    if (!answer) return;
    if (message.type === "delta") {
      answer.after = message.seq;
      answer.tokens = message.token_seq ?? 0;
      answer.calls = message.call_seq ?? 0;
    }
    if (message.type === "done" || message.type === "error") this.#answers.delete(message.id);
    answer.listen(message);
  }

  lost() {
    this.changed("Reconnecting");
  }

  refused() {
    this.changed("Closed");
    const closed = { type: "error", code: "closed", message: "You no longer have access to this playground." };
    for (const [id, answer] of this.#answers) answer.listen({ ...closed, id });
    this.#answers.clear();
  }

  #resume(id) {
    const { after, tokens, calls } = this.#answers.get(id);
    this.send({ type: "resume", id, after, tokens, calls });
  }

  #say(message) {
    if (this.isOpen) this.send(message);
    else this.#unsent.push(message);
  }
}
