// The page: panes side by side, one composer below them.
import { interrupted, restored } from "../interruption.js";
import { Drawer } from "./drawer.js";
import { forget, keep, kept } from "./drafts.js";
import { Keeping } from "./keeping.js";
import { Link } from "./link.js";
import "./pane.js";
import { PaneTabs } from "./pane_tabs.js";
import { badgeOf } from "./picker.js";
import { Prompts } from "./prompts/prompts.js";
import { Sets } from "./prompts/sets.js";

const MAX_PANES = 4;
const ENTER = "enter-sends";
const STATES = { Live: "ok", Reconnecting: "warn", Closed: "bad" };
const KEPT = { kept: ["Saved", "ok"], saving: ["Saving", "busy"], failed: ["Not saved", "bad"] };
const HINT = "sends, Esc stops.";
const HINT_OF_ENTER = "Shift+Enter for a new line, Esc stops.";
const INSTEAD = "replaces the last message of each pane, Esc cancels.";

class Playground extends HTMLElement {
  #replacing = false;

  connectedCallback() {
    this.panes = this.querySelector(".panes");
    this.message = this.querySelector("#message");
    this.tabs = new PaneTabs(this.querySelector(".pane-tabs"));
    this.drawer = new Drawer(this.querySelector("#settings"));
    this.readOnly = this.hasAttribute("data-read-only");
    if (this.readOnly) return this.#open(given("kept"));
    // A posted pane is kept like any draft, so that a reload does not post again.
    if (this.hasAttribute("data-posted")) history.replaceState(null, "", this.dataset.new);
    this.keeping = this.#keeping();
    const left = this.hasAttribute("data-posted") ? null : this.#draft();
    this.link = new Link(this.dataset.slug, (state) => this.#linked(state));
    this.#open(left?.panes.map((pane) => ({ ...pane, recent: left.recent })) ?? given("kept") ?? [{ model: this.#usual() }]);
    if (left) this.message.value = left.message;
    this.#listen();
    this.drawer.restore(this.all[0]);
    if (left?.run) this.begin(left.run, left.recent && left.run.answers.flat().some((one) => one.id));
    else if (this.dataset.set) this.sets?.run(this.dataset.set);
    this.#tellDraft();
    if (matchMedia("(hover: hover)").matches) this.message.focus(); // otherwise an on-screen keyboard would cover the page
  }

  // This tab's draft for this URL, unless the stored conversation is newer.
  #draft() {
    const draft = kept(this.dataset.user);
    return draft && (this.keeping?.takes(draft) ?? true) ? draft : null;
  }

  get all() {
    return [...this.panes.children];
  }

  // The conversation as it is stored.
  conversation() {
    return { panes: this.all.map((pane) => pane.stored()) };
  }

  // A pane's model has another name.
  named() {
    this.tabs.tell(this.all);
  }

  removed(pane) {
    pane.stop();
    pane.remove();
    this.altered();
    this.message.focus();
  }

  async showCode(pane) {
    const { snippets } = await import("./code.js");
    const dialog = document.getElementById("code");
    const wrong = pane.problem();
    const texts = wrong ? { curl: wrong } : snippets(pane.body(), this.dataset.baseUrl);
    for (const pre of dialog.querySelectorAll("[data-code]")) pre.textContent = texts[pre.dataset.code] ?? "";
    dialog.showModal();
  }

  // For the saved prompts.
  text() {
    return this.message.value;
  }

  system() {
    return this.all[0].field("system").value;
  }

  use({ text, system }) {
    if (system) for (const pane of this.all) pane.field("system").value = system;
    this.message.value = text;
    this.message.focus();
    this.edited();
  }

  // The models of the panes; and the panes' settings with these models instead.
  asked() {
    return this.all.map((pane) => pane.asks().model);
  }

  panesOver(models) {
    return this.all.map((pane, at) => ({ ...pane.asks(), model: models[at] }));
  }

  // Show a prompt set, which runs over the panes, in place of them. Its script is loaded only now: most
  // visits run no set.
  async begin(run, started) {
    const wrong = this.all.find((pane) => pane.problem());
    if (wrong) return wrong.showProblem();
    const { Run } = await import("./prompts/run.js");
    this.toggleAttribute("data-runs", true);
    document.getElementById("add-pane").hidden = true;
    this.run = new Run(this, this.querySelector("#run"), run);
    if (started) this.run.start();
  }

  // The prompt set was closed.
  closed() {
    this.run = null;
    this.toggleAttribute("data-runs", false);
    document.getElementById("add-pane").hidden = false;
    this.message.focus();
  }

  #tellEnter() {
    const [key, hint] = [this.querySelector("#sends-by"), this.querySelector("#hint")];
    key.textContent = this.enter.checked ? "Enter" : "Ctrl Enter";
    key.hidden = this.enter.checked && !this.#replacing;
    hint.textContent = this.#replacing ? INSTEAD : this.enter.checked ? HINT_OF_ENTER : HINT;
  }

  // The stored conversation is out of date.
  edited() {
    this.keeping?.changed();
  }

  // Update the buttons after something began, ended, was added or removed.
  changed() {
    const panes = this.all;
    panes.forEach((pane, at) => {
      pane.setAttribute("aria-label", `Pane ${at + 1}`);
      pane.querySelector('[data-act="remove"]').disabled = panes.length === 1;
    });
    this.tabs.tell(panes);
    this.drawer.tell(panes);
    const wrong = panes.map((pane) => pane.problem());
    if (this.readOnly) return;
    const busy = panes.some((pane) => pane.running);
    const asked = panes.some((pane) => pane.tree.leaf);
    this.#tellWrong(wrong);
    this.querySelector("#send").disabled = busy || wrong.some(Boolean);
    this.querySelector("#stop").disabled = !busy;
    this.querySelector("#edit").disabled = busy || !asked;
    document.getElementById("add-pane").disabled = panes.length >= MAX_PANES;
    for (const one of document.querySelectorAll("[data-when-asked]")) one.disabled = busy || !asked;
  }

  // Say beside the disabled button why nothing can be sent.
  #tellWrong(wrong) {
    const shown = this.querySelector("#cannot-send");
    const at = wrong.findIndex(Boolean);
    const whose = wrong.length > 1 ? `Settings of pane ${at + 1}` : "Settings";
    const text = at < 0 ? "" : `${whose}: ${wrong[at]}`;
    if (shown.textContent !== text) shown.textContent = text;
    shown.hidden = !text;
  }

  // The messages here differ from the stored ones.
  altered() {
    this.changed();
    this.edited();
    this.#tellDraft();
  }

  // The model of an empty playground: the one in the URL, else what this user asked last, if it is
  // still there, else a base model.
  #usual() {
    const last = localStorage.getItem(this.#lastModel);
    return this.dataset.model || (badgeOf(last) ? last : this.dataset.base);
  }

  get #lastModel() {
    return `model-${this.dataset.user}-${this.dataset.slug}`;
  }

  #open(panes) {
    for (const pane of panes) this.#add(pane);
  }

  #add(state) {
    const pane = document.createElement("lora-chat");
    this.panes.append(pane);
    pane.open(this, state);
    this.changed();
    return pane;
  }

  #listen() {
    document.getElementById("add-pane").addEventListener("click", () => {
      const used = new Set(this.asked());
      const { base, adapter } = this.dataset;
      const pane = this.#add({ model: [base, adapter].find((one) => one && !used.has(one)) ?? base });
      this.tabs.show(pane);
      pane.field("model").focus();
      this.edited();
    });
    document.getElementById("new").addEventListener("click", () => this.#begin());
    document.getElementById("save")?.addEventListener("click", () => this.#save());
    if (document.getElementById("open-prompts")) new Prompts(this, given("prompts"));
    if (document.getElementById("open-sets")) this.sets = new Sets(this, given("sets"));
    this.enter = this.querySelector("#enter-sends");
    this.enter.checked = localStorage.getItem(ENTER) !== "off";
    this.enter.addEventListener("change", () => {
      localStorage.setItem(ENTER, this.enter.checked ? "on" : "off");
      this.#tellEnter();
    });
    this.#tellEnter();
    this.querySelector("form").addEventListener("submit", (event) => this.#send(event));
    this.querySelector("#stop").addEventListener("click", () => this.#stop());
    this.querySelector("#edit").addEventListener("click", () => this.#edit());
    document.addEventListener("keydown", (event) => this.#pressed(event));
    addEventListener("pagehide", () => this.#leaving());
    document.addEventListener("visibilitychange", () => document.hidden && this.#leaving());
  }

  #pressed(event) {
    if (event.key === "Escape" && !event.defaultPrevented && !document.querySelector("dialog:modal")) {
      if (this.#replacing) this.#replaces(false);
      else this.#stop();
    }
    if (event.key !== "Enter" || event.isComposing || !this.contains(event.target)) return;
    const alone = event.target === this.message && this.enter.checked && !event.shiftKey && !event.altKey;
    if (!alone && !event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    this.querySelector("form.composer").requestSubmit();
  }

  #send(event) {
    event.preventDefault();
    const text = this.message.value.trim();
    if (!text || this.all.some((pane) => pane.running)) return;
    const wrong = this.all.find((pane) => pane.problem());
    if (wrong) return wrong.showProblem();
    localStorage.setItem(this.#lastModel, this.asked()[0]);
    for (const pane of this.all) this.#replacing ? pane.replace(text) : pane.send(text);
    this.#replaces(false);
    this.altered();
  }

  #stop() {
    for (const pane of this.all) pane.stop();
    this.run?.stop();
  }

  // Begin a new conversation; a saved one stays on the server.
  #begin() {
    if (this.keeping?.kept) {
      forget(this.dataset.user, this.dataset.new);
      return location.assign(this.dataset.new);
    }
    this.run?.close();
    for (const pane of this.all) pane.clear();
    this.#replaces(false);
    this.changed();
    this.#tellDraft();
    this.message.focus();
  }

  // Edit the last question in all panes.
  #edit() {
    const asked = this.all.flatMap((pane) => pane.tree.path.filter((node) => node.role === "user" && !node.results)).at(-1);
    this.#replaces(true, asked?.content);
    this.message.focus();
  }

  #replaces(replacing, text = "") {
    this.#replacing = replacing;
    this.message.value = text;
    this.#tellEnter();
  }

  #keeping() {
    if (!document.getElementById("save")) return null;
    return new Keeping(this, {
      create: this.dataset.create,
      csrf: this.querySelector("[name=csrfmiddlewaretoken]").value,
      kept: this.dataset.kept ? { url: this.dataset.kept, revision: Number(this.dataset.revision) } : null,
      onState: (state, message) => this.#kept(state, message),
    });
  }

  async #save() {
    document.getElementById("save").disabled = true;
    const made = await this.keeping.begin();
    if (!made) return this.changed();
    forget(this.dataset.user);
    history.replaceState(null, "", made.url);
    document.querySelector("h1").textContent = made.title;
    for (const form of document.querySelectorAll("form[data-of-kept]")) form.action = made.url + form.dataset.ofKept;
    document.getElementById("title").value = made.title;
    for (const one of document.querySelectorAll("[data-when-kept]")) one.hidden = false;
    document.getElementById("save").hidden = true;
    document.querySelector('[data-opens="share"]').focus();
  }

  #kept(state, message = "") {
    const shown = document.getElementById("kept-state");
    const [text, kind] = KEPT[state];
    shown.hidden = false;
    shown.removeAttribute("title");
    shown.dataset.state = state;
    shown.textContent = text;
    shown.className = `pill ${kind}`;
    const why = document.getElementById("not-kept");
    why.hidden = !message;
    why.textContent = message;
  }

  // The page is left, or its session has ended: its state is kept as a draft.
  #leaving() {
    if (this.#isUntouched()) return forget(this.dataset.user);
    keep(this.dataset.user, {
      panes: this.all.map((pane) => pane.stored({ running: true })),
      message: this.message.value,
      revision: this.keeping?.kept?.revision,
      unsure: this.keeping?.unsure ?? false,
      run: this.run?.stored(),
    });
  }

  #isUntouched() {
    const [pane, ...others] = this.all;
    const { model, parameters, nodes } = pane.stored();
    const set = nodes.length || Object.keys(parameters).length || model !== this.dataset.model;
    return !others.length && !set && !this.message.value && !this.run;
  }

  // A conversation that is not saved is a draft of this tab.
  #tellDraft() {
    const shown = document.getElementById("kept-state");
    if (!shown || this.keeping?.kept || shown.dataset.state === "failed") return;
    shown.hidden = !this.all.some((pane) => pane.tree.leaf);
    [shown.textContent, shown.className] = ["Draft", "pill"];
    shown.title = "This draft is kept in this tab until you close it. Save it to keep it on the server.";
  }

  #linked(state) {
    const shown = document.getElementById("link-state");
    shown.textContent = state;
    shown.className = `pill ${STATES[state]}`;
    if (state === "Reconnecting") interrupted();
    else restored();
  }
}

function given(id) {
  const found = document.getElementById(id);
  return found && JSON.parse(found.textContent);
}

customElements.define("lora-playground", Playground);
