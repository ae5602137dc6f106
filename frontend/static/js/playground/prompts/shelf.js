// A dialog with things that members save under names: a list with actions for each, and a form to save
// another.
import { fetched } from "../../loading.js";
import { button, element } from "../elements.js";

export class Shelf {
  // `known` are those that can be used: { id, name, shared, by, … }; `by` is empty for the user's own.
  constructor(name, known) {
    this.known = known;
    this.dialog = document.getElementById(`${name}-dialog`);
    this.list = this.dialog.querySelector(".shelf");
    this.saving = this.dialog.querySelector("form.keep");
    this.problem = this.saving.querySelector(".errors");
    document.getElementById(`open-${name}`).addEventListener("click", () => this.open());
    this.saving.addEventListener("submit", (event) => this.#save(event));
  }

  open() {
    this.show();
    this.dialog.showModal();
    (this.list.querySelector("button") ?? this.dialog.querySelector("summary")).focus();
  }

  show() {
    this.dialog.querySelector(".none").hidden = this.known.length > 0;
    this.list.replaceChildren(...this.known.map((one) => this.#line(one)));
  }

  // For subclasses: choose(one), note(one), more(one) and body().
  #line(one) {
    const line = element("li");
    const whose = one.by ? `shared by ${one.by}` : one.shared ? "shared" : "";
    const details = [this.note(one), whose].filter(Boolean).join(" · ");
    const name = line.appendChild(button(one.name, () => this.choose(one)));
    name.dir = "auto";
    line.append(element("span", "faint", details), ...this.more(one));
    if (!one.by) line.append(button("Delete", () => this.#delete(one), `Delete ${one.name}`));
    return line;
  }

  note() {
    return "";
  }

  more() {
    return [];
  }

  async #save(event) {
    event.preventDefault();
    const saved = await this.#post(this.saving.action, this.body());
    if (!saved) return;
    this.known = [...this.known.filter((one) => one.id !== saved.id), saved].sort((a, b) => a.name.localeCompare(b.name));
    this.saving.closest("details").open = false;
    this.saving.reset();
    this.show();
  }

  async #delete(one) {
    const done = await this.#post(`${this.saving.action}/${one.id}/delete`, new FormData(this.saving));
    if (!done) return;
    this.known = this.known.filter((other) => other !== one);
    this.show();
  }

  #post(url, body) {
    return this.ask(url, { method: "POST", body });
  }

  // The server's answer; null, with a message in the dialog, if it refuses or cannot be reached.
  async ask(url, options = {}) {
    this.problem.textContent = "";
    try {
      const answer = await fetched(url, { ...options, redirect: "error" });
      const result = await answer.json();
      if (answer.ok) return result;
      this.problem.textContent = result.message;
    } catch {
      this.problem.textContent = "The server could not be reached, or you are signed out.";
    }
    return null;
  }
}
