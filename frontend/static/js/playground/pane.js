// One pane: a model, its parameters, a conversation.
import { Markdown } from "./markdown.js";

const PHASES = { queued: "Queued", loading: "Loading the adapter", prefill: "Prefill", generating: "Generating" };
const REASONS = { length: "Ended at the token limit.", cancelled: "Stopped. This is what is billed:" };
const NUMBERS = { temperature: Number, top_p: Number, max_tokens: Number, seed: Number };

function element(tag, className, text = "") {
  const made = document.createElement(tag);
  made.className = className;
  made.textContent = text;
  return made;
}

function button(text, act) {
  const made = element("button", "button plain", text);
  made.type = "button";
  made.addEventListener("click", act);
  return made;
}

export class Pane extends HTMLElement {
  turns = []; // { role, content }
  running = null; // the id of the answer that is being generated

  // `home` has: link, currency, removed(pane), showCode(pane), changed().
  open(home, model) {
    this.home = home;
    this.className = "pane panel";
    this.setAttribute("role", "group");
    this.append(document.getElementById("pane").content.cloneNode(true));
    this.talk = this.querySelector(".talk");
    this.phase = this.querySelector(".phase [role=status]");
    this.clock = this.querySelector(".clock");
    this.field("model").value = model;
    this.addEventListener("click", (event) => this.#clicked(event.target.closest("[data-act]")));
  }

  field(name) {
    return this.querySelector(`[data-field="${name}"]`);
  }

  // What the socket is asked for. Throws a SyntaxError where the schema is not JSON.
  request(turns = this.turns) {
    return { model: this.field("model").value.trim(), messages: turns, parameters: this.#parameters() };
  }

  // The same as an OpenAI request.
  body() {
    const { system, schema, ...fields } = this.#parameters();
    const messages = [...(system ? [{ role: "system", content: system }] : []), ...this.#asked()];
    const format = schema && {
      response_format: { type: "json_schema", json_schema: { name: "answer", schema, strict: true } },
    };
    return { model: this.field("model").value.trim(), messages, ...fields, ...format };
  }

  send(text) {
    if (this.running) return;
    this.talk.querySelector(".hint")?.remove();
    this.turns.push({ role: "user", content: text });
    this.talk.append(element("p", "turn user", text));
    this.#generate();
  }

  // Take the last question, and what was answered to it, back.
  unsay() {
    while (this.turns.length && this.turns.pop().role !== "user");
    const asked = [...this.talk.querySelectorAll(".turn.user")].at(-1);
    while (asked?.nextElementSibling) asked.nextElementSibling.remove();
    asked?.remove();
  }

  clear() {
    this.stop();
    this.turns = [];
    this.running = null;
    this.talk.replaceChildren(element("p", "hint faint", "No messages yet."));
    this.#says("");
  }

  stop() {
    if (this.running) this.home.link.stop(this.running);
  }

  #asked() {
    const last = this.turns.findLastIndex((turn) => turn.role === "user");
    return last < 0 ? [{ role: "user", content: "Hello" }] : this.turns.slice(0, last + 1);
  }

  #parameters() {
    const found = {};
    for (const [name, read] of Object.entries(NUMBERS)) {
      const value = this.field(name).value.trim();
      if (value !== "") found[name] = read(value);
    }
    const stop = this.field("stop").value.split("\n").filter(Boolean);
    const schema = this.field("schema").value.trim();
    if (stop.length) found.stop = stop;
    if (this.field("system").value) found.system = this.field("system").value;
    if (schema) found.schema = JSON.parse(schema);
    return found;
  }

  #clicked(target) {
    if (target?.dataset.act === "settings") {
      const settings = this.querySelector(".settings");
      settings.hidden = !settings.hidden;
      target.setAttribute("aria-expanded", String(!settings.hidden));
    } else if (target?.dataset.act === "code") this.home.showCode(this);
    else if (target?.dataset.act === "remove") this.home.removed(this);
  }

  #generate() {
    const answer = element("div", "turn assistant");
    const said = answer.appendChild(element("div", "said"));
    this.talk.append(answer);
    this.talk.scrollTop = this.talk.scrollHeight;
    let request;
    try {
      request = this.request();
    } catch (error) {
      return this.#failed(answer, { message: `The JSON schema is not JSON: ${error.message}` });
    }
    const id = (this.running = crypto.randomUUID());
    const state = { id, answer, said, text: "", markdown: new Markdown(said), began: performance.now() };
    this.#waits("queued", state);
    this.home.link.start(id, request, (message) => id === this.running && this.#heard(state, message));
    this.home.changed();
  }

  #heard(state, message) {
    const down = this.talk.scrollHeight - this.talk.scrollTop - this.talk.clientHeight < 48;
    if (message.type === "phase") this.#waits(message.phase, state);
    else if (message.type === "delta") {
      state.text += message.text;
      state.markdown.add(message.text);
    } else this.#ended(state, message);
    if (down) this.talk.scrollTop = this.talk.scrollHeight;
  }

  #waits(phase, state) {
    this.#says(PHASES[phase] ?? phase);
    if (phase === "generating") return;
    const show = () => (this.clock.textContent = `${((performance.now() - state.began) / 1000).toFixed(1)} s`);
    this.ticking = setInterval(show, 100);
  }

  // The clock beside it is not for screen readers.
  #says(phase) {
    clearInterval(this.ticking);
    this.clock.textContent = "";
    this.phase.textContent = phase;
  }

  #ended(state, message) {
    state.markdown.end();
    this.running = null;
    if (state.text) this.turns.push({ role: "assistant", content: state.text });
    if (message.type === "error") this.#failed(state.answer, message);
    else this.#finished(state.answer, message);
    this.home.changed();
  }

  #finished(answer, message) {
    this.#says(message.finish_reason === "cancelled" ? "Stopped" : "Done");
    const why = message.limited || REASONS[message.finish_reason];
    if (why) answer.append(element("p", "why quiet", why));
    const foot = answer.appendChild(element("p", "foot faint", footline(message, this.home.currency)));
    foot.append(button("Retry", () => this.#retry()));
  }

  #failed(answer, message) {
    this.#says("Failed");
    const notice = answer.appendChild(element("div", "notice bad"));
    notice.setAttribute("role", "alert");
    const later = message.retry_after_s ? ` Try again in ${Math.ceil(message.retry_after_s)} s.` : "";
    notice.append(element("p", "", message.message + later));
    if (message.request_id) notice.append(element("p", "mono faint", message.request_id));
    notice.append(button("Retry", () => this.#retry()));
  }

  #retry() {
    const asked = this.turns.findLast((turn) => turn.role === "user");
    if (this.running || !asked) return;
    this.unsay();
    this.send(asked.content);
  }
}

// `TTFT 182 ms · 94 tok/s · 310 in (256 cached) · 88 out · $0.0004 · req_...`
export function footline(done, currency) {
  const usage = done.usage;
  const cached = usage.prompt_tokens_details.cached_tokens;
  const units = done.cost / 1e12;
  const money = new Intl.NumberFormat("en", {
    style: "currency",
    currency,
    minimumFractionDigits: 2,
    maximumFractionDigits: units && units < 0.01 ? 8 : 4,
  });
  return [
    done.ttft_ms !== null && `TTFT ${Math.round(done.ttft_ms)} ms`,
    done.tokens_per_s !== null && `${Math.round(done.tokens_per_s)} tok/s`,
    `${usage.prompt_tokens} in${cached ? ` (${cached} cached)` : ""}`,
    `${usage.completion_tokens} out`,
    money.format(units),
    done.request_id,
  ].filter(Boolean).join(" · ");
}

customElements.define("lora-chat", Pane);
