// The page: panes side by side, one composer below them.
import { snippets } from "./code.js";
import { Link } from "./link.js";
import "./pane.js";

const MAX_PANES = 4;
const STATES = { Live: "ok", Reconnecting: "warn", Closed: "bad" };

class Playground extends HTMLElement {
  connectedCallback() {
    this.panes = this.querySelector(".panes");
    this.message = this.querySelector("#message");
    this.currency = this.dataset.currency;
    this.link = new Link(`/ws/playground/${this.dataset.slug}`, (state) => this.#linked(state));
    this.#add(this.dataset.model);
    this.#listen();
  }

  get all() {
    return [...this.panes.children];
  }

  removed(pane) {
    pane.stop();
    pane.remove();
    this.changed();
    this.message.focus();
  }

  showCode(pane) {
    const dialog = document.getElementById("code");
    let texts;
    try {
      texts = snippets(pane.body(), this.dataset.baseUrl);
    } catch (error) {
      texts = { curl: `The JSON schema is not JSON: ${error.message}` };
    }
    for (const pre of dialog.querySelectorAll("[data-code]")) pre.textContent = texts[pre.dataset.code] ?? "";
    dialog.showModal();
  }

  // Something began, ended, came or went: what can be pressed now?
  changed() {
    const panes = this.all;
    const busy = panes.some((pane) => pane.running);
    const asked = panes.some((pane) => pane.turns.length);
    this.querySelector("#send").disabled = busy;
    this.querySelector("#stop").disabled = !busy;
    this.querySelector("#edit").disabled = busy || !asked;
    document.getElementById("add-pane").disabled = panes.length >= MAX_PANES;
    panes.forEach((pane, at) => pane.setAttribute("aria-label", `Pane ${at + 1}`));
    for (const pane of panes) pane.querySelector('[data-act="remove"]').disabled = panes.length === 1;
  }

  #add(model) {
    const pane = document.createElement("lora-chat");
    pane.open(this, model);
    this.panes.append(pane);
    this.changed();
    return pane;
  }

  #listen() {
    document.getElementById("add-pane").addEventListener("click", () => {
      const used = new Set(this.all.map((pane) => pane.field("model").value));
      const other = used.has(this.dataset.other) ? this.dataset.model : this.dataset.other;
      this.#add(other).field("model").focus();
    });
    document.getElementById("clear").addEventListener("click", () => this.#clear());
    this.querySelector("form").addEventListener("submit", (event) => this.#send(event));
    this.querySelector("#stop").addEventListener("click", () => this.#stop());
    this.querySelector("#edit").addEventListener("click", () => this.#edit());
    document.addEventListener("keydown", (event) => this.#pressed(event));
  }

  #pressed(event) {
    if (event.key === "Escape" && !document.querySelector("dialog[open]")) this.#stop();
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && this.contains(event.target)) {
      this.querySelector("form").requestSubmit();
    }
  }

  #send(event) {
    event.preventDefault();
    const text = this.message.value.trim();
    if (!text || this.all.some((pane) => pane.running)) return;
    this.message.value = "";
    for (const pane of this.all) pane.send(text);
    this.changed();
  }

  #stop() {
    for (const pane of this.all) pane.stop();
  }

  #clear() {
    for (const pane of this.all) pane.clear();
    this.changed();
    this.message.focus();
  }

  // The last question goes back to the composer; sent again it begins anew from there.
  #edit() {
    const asked = this.all.flatMap((pane) => pane.turns.filter((turn) => turn.role === "user")).at(-1);
    for (const pane of this.all) pane.unsay();
    this.message.value = asked?.content ?? "";
    this.changed();
    this.message.focus();
  }

  #linked(state) {
    const shown = document.getElementById("link-state");
    shown.textContent = state;
    shown.className = `pill ${STATES[state]}`;
  }
}

customElements.define("lora-playground", Playground);
