// Saved prompts: a dialog to use one, with its variables, and to save the message as another.
import { button, element } from "./turn.js";

const VARIABLE = /\{\{\s*([\w-]+)\s*\}\}/g;

export const variablesOf = (...texts) => [...new Set(texts.flatMap((text) => [...text.matchAll(VARIABLE)].map(([, name]) => name)))];
export const filled = (text, values) => text.replace(VARIABLE, (whole, name) => values[name] ?? whole);

export class Prompts {
  // `home` has: text(), system(), use({ text, system }).
  constructor(home, known) {
    this.home = home;
    this.known = known;
    this.dialog = document.getElementById("prompts-dialog");
    this.list = this.dialog.querySelector("#prompt-list");
    this.using = this.dialog.querySelector("#use-prompt");
    this.saving = this.dialog.querySelector("#save-prompt");
    this.problem = this.dialog.querySelector("#prompt-problem");
    document.getElementById("open-prompts").addEventListener("click", () => this.#open());
    this.using.addEventListener("submit", (event) => this.#use(event));
    this.saving.addEventListener("submit", (event) => this.#save(event));
  }

  #open() {
    this.using.hidden = true;
    this.saving.elements.text.value = this.home.text();
    this.#show();
    this.dialog.showModal();
    (this.list.querySelector("button") ?? this.dialog.querySelector("summary")).focus();
  }

  #show() {
    this.dialog.querySelector("#no-prompts").hidden = this.known.length > 0;
    this.list.replaceChildren(...this.known.map((one) => this.#line(one)));
  }

  #line(one) {
    const line = element("li");
    const use = button(one.name, () => this.#choose(one));
    const whose = one.by ? `shared by ${one.by}` : one.shared ? "shared" : "";
    line.append(use, element("span", "faint", whose));
    if (!one.by) line.append(button("Delete", () => this.#delete(one), `Delete the prompt ${one.name}`));
    return line;
  }

  // What has variables asks for them first.
  #choose(one) {
    this.chosen = one;
    const names = variablesOf(one.text, one.system);
    if (!names.length) return this.#finish({});
    const fields = names.map((name) => {
      const field = element("label", "field", name);
      const input = field.appendChild(document.createElement("input"));
      [input.type, input.name, input.required] = ["text", name, true];
      return field;
    });
    this.using.querySelector("#use-title").textContent = one.name;
    this.using.querySelector("#variables").replaceChildren(...fields);
    this.using.hidden = false;
    this.using.querySelector("input").focus();
  }

  #use(event) {
    event.preventDefault();
    this.#finish(Object.fromEntries(new FormData(this.using)));
  }

  #finish(values) {
    const { text, system } = this.chosen;
    this.dialog.close();
    this.home.use({ text: filled(text, values), system: filled(system, values) });
  }

  async #save(event) {
    event.preventDefault();
    const body = new FormData(this.saving);
    body.set("system", this.home.system());
    const saved = await this.#post(this.saving.action, body);
    if (!saved) return;
    this.known = [...this.known.filter((one) => one.id !== saved.id), saved].sort((a, b) => a.name.localeCompare(b.name));
    this.saving.closest("details").open = false;
    this.saving.reset();
    this.#show();
  }

  async #delete(one) {
    const done = await this.#post(`${this.saving.action}/${one.id}/delete`, new FormData(this.saving));
    if (!done) return;
    this.known = this.known.filter((other) => other !== one);
    this.#show();
  }

  async #post(url, body) {
    this.problem.textContent = "";
    try {
      const answer = await fetch(url, { method: "POST", body, redirect: "error" });
      const said = await answer.json();
      if (answer.ok) return said;
      this.problem.textContent = said.message;
    } catch {
      this.problem.textContent = "The server could not be reached, or you are signed out.";
    }
    return null;
  }
}
