// The element of one message, with its actions.
import { Calls, resultsOf } from "./calls.js";
import { button, element, footed } from "./elements.js";
import { Answer } from "./json.js";
import { markSpecial } from "./special.js";
import { Tokens } from "./tokens.js";

// `pane` has: tree, readOnly, choose(node, step), resend(node, text), retry(node), answer(node),
// respond(node, results).
export class Turn {
  constructor(pane, node) {
    this.pane = pane;
    this.node = node;
    this.root = element("div", `turn ${node.role}`);
    this.root.append(element("span", "visually-hidden", node.role === "user" ? "You:" : "Model:"));
    if (node.role === "user") this.body = this.root.appendChild(this.#asked());
    else this.body = this.root.appendChild(element("div", "output"));
    this.body.dir = "auto";
    if (node.role === "assistant") this.calls = new Calls(this.root.appendChild(element("div", "calls")));
    this.notes = this.root.appendChild(element("div", "notes"));
    this.tools = this.root.appendChild(element("div", "tools"));
    if (node.role === "assistant" && !node.running) this.#restore();
  }

  // The writer of the answer: { add(text, tokens), end() }.
  writer({ tokens = false } = {}) {
    this.body.replaceChildren();
    this.calls.clear();
    return tokens ? new Tokens(this.body) : new Answer(this.body);
  }

  note({ foot = "", why = "" }) {
    this.notes.replaceChildren();
    if (why) this.notes.append(element("p", "why quiet", why));
    if (foot) this.notes.append(footed(foot));
  }

  fail(error) {
    const notice = element("div", "notice bad");
    notice.setAttribute("role", "alert");
    const hasWait = error.message.includes("Try again in "); // the message of a limit
    const later = error.retry_after_s && !hasWait ? ` Try again in ${Math.ceil(error.retry_after_s)} s.` : "";
    notice.append(element("p", "", error.message + later));
    if (error.request_id) notice.append(element("p", "mono faint", error.request_id));
    notice.append(button("Retry", () => this.pane.retry(this.node)));
    this.notes.replaceChildren(notice);
  }

  // Update the buttons below it. While an answer is being written, only its versions can change.
  offer() {
    const offered = [];
    const { at, of } = this.pane.tree.versions(this.node);
    if (of.length > 1) offered.push(this.#versions(at, of));
    const free = !this.pane.readOnly && !this.pane.running;
    if (free) offered.push(...this.#actions());
    if (this.calls) this.#offerResults(free && this.node === this.pane.tree.leaf && this.node.calls?.length > 0);
    const held = this.tools.contains(document.activeElement) && document.activeElement.dataset.step;
    this.tools.replaceChildren(...offered);
    if (held) this.focusVersions(held);
  }

  // Focus the arrow of this step again, or the other one at the end.
  focusVersions(step) {
    const arrows = [`[data-step="${step}"]:enabled`, "[data-step]:enabled"];
    arrows.map((arrow) => this.tools.querySelector(arrow)).find(Boolean)?.focus();
  }

  #actions() {
    if (this.node.role === "user") {
      const edit = button("Edit", () => this.#edit());
      const answered = this.node.children.length > 0;
      const answer = answered ? [] : [button("Answer", () => this.pane.answer(this.node))];
      return this.node.results ? answer : [edit, ...answer];
    }
    const copy = button("Copy", async () => {
      await navigator.clipboard.writeText(this.node.content);
      copy.textContent = "Copied";
      setTimeout(() => (copy.textContent = "Copy"), 1500);
    });
    const failed = this.notes.querySelector(".notice"); // which has its own Retry
    return [...(this.node.content ? [copy] : []), ...(failed ? [] : [button("Retry", () => this.pane.retry(this.node))])];
  }

  #versions(at, of) {
    const shown = element("span", "versions");
    const go = (step) => this.pane.choose(this.pane.tree.get(of[at + step]), step);
    const earlier = button("‹", () => go(-1), "Earlier version");
    const later = button("›", () => go(1), "Later version");
    [earlier.dataset.step, later.dataset.step] = ["-1", "1"];
    [earlier.disabled, later.disabled] = [at === 0, at === of.length - 1];
    const count = element("span", "", `${at + 1}/${of.length}`);
    count.setAttribute("aria-label", `Version ${at + 1} of ${of.length}`);
    count.setAttribute("role", "img");
    shown.append(earlier, count, later);
    return shown;
  }

  #edit() {
    const form = element("form", "rewrite");
    const text = element("textarea");
    text.value = this.node.content;
    text.setAttribute("aria-label", "Edit the message");
    text.dir = "auto";
    const send = button("Send as a new version", () => form.requestSubmit());
    send.className = "button primary";
    const close = () => {
      form.replaceWith(this.body);
      this.offer();
      this.tools.querySelector("button:last-child")?.focus();
    };
    form.append(text, element("div", "actions"));
    form.lastChild.append(button("Cancel", close), send);
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (!text.value.trim() || this.pane.running) return;
      form.replaceWith(this.body);
      this.pane.resend(this.node, text.value.trim());
    });
    form.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
      else if (event.key === "Escape") close();
      else return;
      event.preventDefault();
      event.stopPropagation();
    });
    this.body.replaceWith(form);
    this.tools.replaceChildren();
    text.focus();
  }

  #asked() {
    if (this.node.results) return resultsOf(this.pane.tree.get(this.node.parent), this.node);
    const asked = element("div", "asked", this.node.content);
    markSpecial(asked);
    return asked;
  }

  // The form for the results of its tool calls.
  #offerResults(wanted) {
    if (wanted && !this.form) {
      this.form = this.calls.form((results) => this.pane.respond(this.node, results));
      this.calls.root.after(this.form);
    }
    if (this.form) this.form.hidden = !wanted;
  }

  #restore() {
    const writer = this.writer();
    writer.add(this.node.content);
    writer.end();
    this.calls.show(this.node.calls ?? []);
    this.note(this.node);
  }
}
