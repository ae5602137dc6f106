// One pane: a model, its parameters, a tree of messages.
import { extraProblem, jsonProblem, schemaProblem, toolsProblem } from "./checks.js";
import { element } from "./elements.js";
import { PHASES, footline, seconds, waits } from "./figures.js";
import { Picker, badgeOf } from "./picker.js";
import { Tree } from "./tree.js";
import { Turn } from "./turn.js";

const REASONS = { length: "Ended at the token limit.", cancelled: "Stopped. Billed so far:" };
const NUMBERS = ["temperature", "top_p", "max_tokens", "seed", "presence_penalty", "frequency_penalty"];

class Pane extends HTMLElement {
  tree = new Tree();
  running = null; // the id of the answer that is being generated
  #turns = new Map(); // node -> Turn, also of versions that are not shown

  // `home` has: link, readOnly, drawer, all, removed(pane), showCode(pane), altered(), edited(),
  // changed(), named(). An answer to
  // `resume` is begun again only if it is `recent`; otherwise it is only continued, if possible.
  open(home, { model, parameters = {}, nodes = [], leaf = null, resume = null, recent = true }) {
    this.home = home;
    this.readOnly = home.readOnly;
    this.className = "pane panel";
    this.setAttribute("role", "group");
    this.append(document.getElementById("pane").content.cloneNode(true));
    this.settings = document.getElementById("pane-settings").content.cloneNode(true).firstElementChild;
    this.talk = this.querySelector(".talk");
    this.phase = this.querySelector(".phase [role=status]");
    this.clock = this.querySelector(".clock");
    this.#fill(model, parameters);
    this.addEventListener("click", (event) => this.#clicked(event.target.closest("[data-act]")));
    for (const root of [this, this.settings]) root.addEventListener("change", (event) => event.target.dataset.field && this.home.edited());
    this.settings.addEventListener("input", (event) => event.target.dataset.field in JSON_FIELDS && this.home.changed());
    for (const event of ["input", "change"]) this.field("model").addEventListener(event, () => this.#tellVersion());
    if (!this.readOnly) new Picker(this.field("model"));
    this.#tellVersion();
    this.tree = Tree.of({ nodes, leaf });
    this.#show();
    if (resume) this.#resume(resume, recent);
  }

  field(name) {
    const place = `[data-field="${name}"]`;
    return this.settings.querySelector(place) ?? this.querySelector(place);
  }

  // The first error in the settings, also shown at its field; empty if there is none.
  problem() {
    const found = Object.keys(JSON_FIELDS).map((name) => {
      const problem = this.#problemOf(name);
      const shown = this.settings.querySelector(`[data-problem="${name}"]`);
      if (shown.textContent !== problem) shown.textContent = problem; // else it would be read out again
      this.field(name).setAttribute("aria-invalid", String(Boolean(problem)));
      return problem;
    });
    return found.find(Boolean) ?? "";
  }

  // Open the settings at the field with an error.
  showProblem() {
    this.home.drawer.open(this);
  }

  // Whether the drawer shows the settings of this pane.
  tellSettings(open) {
    this.querySelector('[data-act="settings"]').setAttribute("aria-expanded", String(open));
  }

  // The same as the body of an OpenAI request.
  body() {
    const { system, schema, logprobs, extra, ...fields } = this.parameters();
    const messages = [...(system ? [{ role: "system", content: system }] : []), ...this.#asked()];
    const format = schema && {
      response_format: { type: "json_schema", json_schema: { name: "answer", schema, strict: true } },
    };
    const shown = logprobs && { logprobs, top_logprobs: 5 };
    return { model: this.field("model").value.trim(), messages, ...fields, ...extra, ...format, ...shown };
  }

  // The pane to store; with `running`, also the answer in progress, so that it can be continued.
  stored({ running = false } = {}) {
    const parameters = this.parameters();
    const model = this.field("model").value.trim();
    return { model, parameters, ...this.tree.stored({ running }), ...(running && { resume: this.running }) };
  }

  send(text) {
    if (this.running) return;
    const { leaf } = this.tree;
    // A question that was left without an answer is replaced: two in a row would not be a
    // conversation.
    this.#answer(leaf?.role === "user" ? this.tree.edit(leaf, text) : this.tree.add(leaf, "user", text));
  }

  // Answer a question that has no answer.
  answer(question) {
    if (this.running) return;
    this.#answer(question);
    this.home.altered();
  }

  // Continue with the results of the tools that an answer called.
  respond(node, results) {
    if (this.running) return;
    this.#answer(this.tree.add(node, "user", "", { results }));
    this.home.altered();
  }

  // The current model and parameters, without the messages.
  asks() {
    return { model: this.field("model").value.trim(), parameters: this.parameters() };
  }

  // Another version of a question, and an answer to it.
  resend(node, text) {
    if (this.running) return;
    this.#answer(this.tree.edit(node, text));
    this.home.altered();
  }

  // Another version of an answer.
  retry(node) {
    if (this.running) return;
    this.#answer(this.tree.get(node.parent));
    this.home.altered();
  }

  // Another version of the last shown question, or the first question of an empty pane.
  replace(text) {
    const asked = this.tree.path.findLast((node) => node.role === "user" && !node.results);
    if (asked) this.resend(asked, text);
    else this.send(text);
  }

  // Show this version, the one `step` before or after the shown one.
  choose(node, step) {
    this.tree.choose(node);
    this.#show();
    this.#turn(node).focusVersions(step);
    this.home.edited();
  }

  clear() {
    this.stop();
    this.running = null;
    this.tree = new Tree();
    this.#turns.clear();
    this.#show();
    this.#says("");
  }

  stop() {
    if (this.running) this.home.link.stop(this.running);
  }

  // Enable the buttons that can be used now.
  offer() {
    for (const node of this.tree.path) this.#turn(node).offer();
  }

  // The settings, without those that `problem` finds wrong.
  parameters() {
    const found = {};
    for (const name of NUMBERS) {
      const value = this.field(name).value.trim();
      if (value !== "") found[name] = Number(value);
    }
    const stop = this.field("stop").value.split("\n").filter(Boolean);
    if (stop.length) found.stop = stop;
    if (this.field("system").value) found.system = this.field("system").value;
    for (const name of Object.keys(JSON_FIELDS)) {
      const text = this.field(name).value.trim();
      if (text && !this.#problemOf(name)) found[name] = JSON.parse(text);
    }
    if (this.field("logprobs").checked) found.logprobs = true;
    return found;
  }

  #problemOf(name) {
    return jsonProblem(this.field(name).value.trim(), (value) => JSON_FIELDS[name](value, this));
  }

  #fill(model, { stop = [], logprobs, ...plain }) {
    this.field("model").value = model;
    for (const [name, value] of Object.entries(plain)) {
      this.field(name).value = name in JSON_FIELDS && value ? JSON.stringify(value, null, 2) : value ?? "";
    }
    this.field("stop").value = stop.join("\n");
    this.field("logprobs").checked = Boolean(logprobs);
    if (!this.readOnly) return;
    for (const root of [this, this.settings]) for (const field of root.querySelectorAll("[data-field]")) field.disabled = true;
  }

  // Show which version the entered name means, if the page knows it.
  #tellVersion() {
    const badge = this.querySelector("[data-badge]");
    const name = this.field("model").value.trim();
    badge.textContent = badgeOf(name) ?? "";
    badge.hidden = !badge.textContent;
    badge.classList.toggle("ok", badge.textContent.endsWith("live"));
    badge.classList.toggle("warn", badge.textContent.endsWith("candidate"));
    this.home.named();
  }

  #asked() {
    const last = this.tree.path.findLast((node) => node.role === "user");
    return last ? this.tree.turns(last) : [{ role: "user", content: "Hello" }];
  }

  #clicked(target) {
    if (target?.dataset.act === "settings") this.home.drawer.toggle(this);
    else if (target?.dataset.act === "code") this.home.showCode(this);
    else if (target?.dataset.act === "remove") this.home.removed(this);
  }

  #turn(node) {
    if (!this.#turns.has(node)) this.#turns.set(node, new Turn(this, node));
    return this.#turns.get(node);
  }

  #show() {
    const turns = this.tree.path.map((node) => this.#turn(node).root);
    const hint = element("p", "hint faint", "No messages yet.");
    this.talk.replaceChildren(...(turns.length ? turns : [hint]));
    this.offer();
  }

  #answer(question) {
    this.tree.choose(question);
    const node = this.tree.add(question, "assistant", "", { running: true });
    this.#generate(node, (id, listen) => this.home.link.start(id, this.#request(this.tree.turns(question)), listen));
  }

  #request(messages) {
    return { ...this.asks(), messages };
  }

  // Continue an answer that was being generated when the page was left; if that is impossible, keep
  // the part that is here. If none of it has arrived, it may never have begun, so begin it now.
  #resume(id, recent) {
    const node = this.tree.leaf;
    node.running = true;
    this.#turns.delete(node);
    const request = this.#request(this.tree.turns(this.tree.get(node.parent)));
    const { link } = this.home;
    const begins = recent && !node.content;
    const ask = (listen) => (begins ? link.start(id, request, listen) : link.resume(id, listen));
    this.#generate(node, (_, listen) => ask(listen), id);
  }

  #generate(node, ask, id = crypto.randomUUID()) {
    this.running = id;
    const turn = this.#turn(node);
    const tokens = this.field("logprobs").checked;
    const state = { node, turn, text: "", before: node.content, writer: turn.writer({ tokens }) };
    this.#show();
    this.talk.scrollTop = this.talk.scrollHeight;
    this.#waits(state, { phase: "waiting" });
    ask(id, (message) => id === this.running && this.#handle(state, message));
  }

  #handle(state, message) {
    const down = this.talk.scrollHeight - this.talk.scrollTop - this.talk.clientHeight < 48;
    if (message.type === "phase") this.#waits(state, message);
    else if (message.type === "delta") this.#add(state, message);
    else this.#ended(state, message);
    if (down) this.talk.scrollTop = this.talk.scrollHeight;
  }

  #add(state, { text, tokens, calls = [] }) {
    state.text += text;
    state.node.content = state.text;
    if (text || tokens) state.writer.add(text, tokens);
    state.turn.calls.add(calls);
    state.node.calls = state.turn.calls.list;
  }

  // `Queued 0.8 s › Loading the adapter`, with a clock for the current stage.
  #waits(state, { phase, place = 0, elapsed_ms = 0 }) {
    const since = performance.now() - elapsed_ms;
    if (state.phase && state.phase !== phase && since - state.since >= 50) {
      state.past = [...(state.past ?? []), `${PHASES[state.phase]} ${seconds(since - state.since)} ›`];
    }
    if (state.phase !== phase) Object.assign(state, { phase, since });
    this.#says(place ? `${PHASES[phase]} (place ${place})` : PHASES[phase] ?? phase, state.past);
    if (phase === "generating") return;
    const show = () => (this.clock.textContent = seconds(performance.now() - state.since));
    this.ticking = setInterval(show, 100);
  }

  // Screen readers skip the clock and the past stages.
  #says(phase, past = []) {
    clearInterval(this.ticking);
    this.clock.textContent = "";
    this.querySelector(".past").textContent = past.join(" ");
    this.phase.textContent = phase;
  }

  #ended(state, message) {
    if (message.code === "not_found" && !state.text) this.#add(state, { text: state.before });
    state.writer.end();
    state.turn.calls.end();
    this.running = state.node.running = null;
    if (message.type === "error") this.#failed(state, message);
    else this.#finished(state, message);
    this.offer();
    this.home.altered();
  }

  #finished({ node, turn }, message) {
    const end = message.finish_reason === "cancelled" ? "Stopped" : "Done";
    this.#says([end, waits(message)].filter(Boolean).join(" · "));
    node.why = message.limited || REASONS[message.finish_reason];
    node.foot = footline(message);
    turn.note(node);
  }

  #failed({ turn }, message) {
    this.#says("Failed");
    turn.fail(message);
  }
}

// The check of each field with JSON: returns the error, or an empty string.
const JSON_FIELDS = {
  schema: schemaProblem,
  tools: toolsProblem,
  extra: (value, pane) => extraProblem(value, pane.field("schema").value.trim() !== ""),
};

customElements.define("lora-chat", Pane);
