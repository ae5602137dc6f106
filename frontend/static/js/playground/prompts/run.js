// A prompt set run over the panes: each prompt goes to all of them at the same time, as a conversation
// of its own, and the user votes for the better answer. In a blind run the answers to a prompt stand in a
// random order, without their models and figures, until the vote is cast; it is then final.
import { duration, money } from "../../format.js";
import { Calls } from "../calls.js";
import { button, element, footed } from "../elements.js";
import { footline } from "../figures.js";
import { Answer } from "../json.js";
import { markSpecial } from "../special.js";
import { Ballot } from "./ballot.js";

const LETTERS = "ABCD";
const TIE = "tie";
const NAMED = "votes-named"; // whether this user prefers to see the models while voting
const MAX_FAILED = 3; // prompts in a row with an error: the rest would fail as well

// A random order of `count` things, each equally likely. `random(n)` is below n.
export function shuffled(count, random = (n) => Math.floor(Math.random() * n)) {
  const order = [...Array(count).keys()];
  for (let last = count - 1; last > 0; last--) {
    const other = random(last + 1);
    [order[last], order[other]] = [order[other], order[last]];
  }
  return order;
}

export class Run {
  #asking = new Map(); // id -> resolves the wait for this answer
  #shown = []; // by prompt and pane: { title, output, notes, calls }
  #votes = []; // by prompt: the field with its choices

  // `home` has: link, closed(). `panes` are requests without messages; `scores` those of earlier runs;
  // `key`, `answers` (by prompt and pane), `votes` (by prompt, the letter of a pane), `blind` and `orders`
  // (by prompt, the panes as they stand) are those of a run to continue.
  constructor(home, root, { id, key, name, prompts, panes, answers, votes, scores, blind, orders }) {
    Object.assign(this, { home, root, id, name, prompts, panes });
    this.key = key ?? crypto.randomUUID();
    this.answers = answers ?? prompts.map(() => panes.map(() => ({})));
    this.votes = votes ?? prompts.map(() => "");
    this.blind = (blind ?? localStorage.getItem(NAMED) !== "on") && panes.length > 1;
    this.orders = orders ?? prompts.map(() => (this.blind ? shuffled(panes.length) : [...panes.keys()]));
    this.ballot = new Ballot(this, scores ?? []);
    this.#open();
  }

  stored() {
    const { id, key, name, prompts, panes, answers, votes, blind, orders } = this;
    return { id, key, name, prompts, panes, answers, votes, blind, orders, scores: this.ballot.scores };
  }

  get running() {
    return this.#asking.size > 0;
  }

  // Ask what is not answered yet, one prompt after another.
  async start() {
    this.wanted = true;
    let failed = 0;
    for (let at = 0; at < this.prompts.length && this.wanted && failed < MAX_FAILED; at++) {
      const asked = this.panes.map((_, pane) => this.#ask(at, pane));
      this.#tell();
      await Promise.all(asked);
      failed = this.answers[at].some((one) => one.failed) ? failed + 1 : 0;
    }
    this.wanted = false;
    this.#tell();
  }

  stop() {
    this.wanted = false;
    for (const id of this.#asking.keys()) this.home.link.stop(id);
  }

  #ask(at, pane) {
    const answer = this.answers[at][pane];
    if (answer.done) return null;
    const known = answer.id; // it was being generated when the page was left
    Object.assign(answer, { id: known ?? crypto.randomUUID(), text: "", calls: [], failed: "" });
    const shown = this.#shown[at][pane];
    shown.output.replaceChildren();
    shown.notes.replaceChildren(element("p", "faint", "Waiting"));
    const writer = new Answer(shown.output);
    return new Promise((resolve) => {
      this.#asking.set(answer.id, resolve);
      const listen = (message) => this.#handle(answer, { ...shown, writer }, message);
      const request = { ...this.panes[pane], messages: [{ role: "user", content: this.prompts[at] }] };
      if (known) this.home.link.resume(known, listen);
      else this.home.link.start(answer.id, request, listen);
    });
  }

  #handle(answer, { writer, calls, notes }, message) {
    if (message.type === "phase") return;
    if (message.type === "delta") {
      notes.replaceChildren();
      answer.text += message.text;
      if (message.text) writer.add(message.text);
      calls.add(message.calls ?? []);
      answer.calls = calls.list;
      return;
    }
    writer.end();
    calls.end();
    this.#asking.get(answer.id)?.();
    this.#asking.delete(answer.id);
    delete answer.id;
    if (message.type === "error") answer.failed = message.message;
    else if (message.finish_reason === "cancelled") answer.failed = "Stopped.";
    else Object.assign(answer, { done: true, foot: footline(message), cost: message.cost, ttft_ms: message.ttft_ms });
    this.#note(notes, answer);
    this.#tell();
  }

  close() {
    this.stop();
    this.root.hidden = true;
    this.root.replaceChildren();
    this.home.closed();
  }

  #vote(at, choice) {
    this.votes[at] = choice;
    this.#tell();
    this.ballot.cast();
  }

  // Whether the models of this prompt's answers are hidden.
  #isHidden(at) {
    return this.blind && !this.votes[at];
  }

  // The choice was changed. The orders of prompts without a vote are drawn anew.
  #chooseBlind(blind) {
    this.blind = blind;
    localStorage.setItem(NAMED, blind ? "off" : "on");
    const open = (at) => !this.votes[at];
    this.orders = this.orders.map((order, at) => (open(at) ? (blind ? shuffled(order.length) : [...order.keys()]) : order));
    this.#draw();
    this.#tell();
  }

  // --- what is seen ------------------------------------------------------------------------------

  #open() {
    this.status = element("p", "quiet");
    this.status.setAttribute("role", "status");
    this.go = button("Run", () => this.start());
    this.halt = button("Stop", () => this.stop());
    this.go.className = "button primary";
    this.halt.className = "button danger";
    const head = element("header");
    const title = head.appendChild(element("div"));
    title.append(element("h2", "", this.name), this.status);
    Object.assign(title.firstChild, { id: "run-title", dir: "auto" });
    head.append(element("div", "actions"));
    head.lastChild.append(button("Back to the panes", () => this.close()), this.halt, this.go);
    this.progress = element("progress");
    this.progress.setAttribute("aria-label", "Prompts answered");
    this.progress.max = this.prompts.length;
    this.sums = element("dl", "stats");
    this.list = element("ol", "trials");
    this.root.replaceChildren(head, this.progress, ...(this.panes.length > 1 ? [this.#blindChoice()] : []), this.sums, this.ballot.shown, this.list);
    this.root.hidden = false;
    this.#draw();
    this.#tell();
  }

  #draw() {
    this.list.replaceChildren(...this.prompts.map((text, at) => this.#trial(text, at)));
  }

  #blindChoice() {
    const label = element("label", "check body");
    this.hides = label.appendChild(document.createElement("input"));
    Object.assign(this.hides, { type: "checkbox", checked: this.blind });
    this.hides.addEventListener("change", () => this.#chooseBlind(this.hides.checked));
    label.append(element("span", "", "Blind: hide the models and shuffle the answers until you vote. A blind vote is final."));
    return label;
  }

  #trial(text, at) {
    const trial = element("li");
    const answers = element("div", "answers");
    this.#shown[at] = [];
    this.orders[at].forEach((pane) => (this.#shown[at][pane] = this.#answer(answers, at, pane)));
    const asked = element("p", "asked", text);
    asked.dir = "auto";
    markSpecial(asked);
    trial.append(element("h3", "visually-hidden", `Prompt ${at + 1}`), asked, answers);
    if (this.panes.length > 1) trial.append(this.#choice(at));
    return trial;
  }

  #answer(into, at, pane) {
    const box = into.appendChild(element("article", "answer"));
    const title = box.appendChild(element("h4"));
    const [output, called, notes] = ["output", "calls", "notes"].map((name) => box.appendChild(element("div", name)));
    output.dir = "auto";
    const shown = { title, output, notes, calls: new Calls(called) };
    const answer = this.answers[at][pane];
    if (answer.done || answer.failed) {
      const writer = new Answer(output);
      writer.add(answer.text);
      writer.end();
      shown.calls.show(answer.calls);
      this.#note(notes, answer);
    }
    return shown;
  }

  // The letter of an answer is that of its place.
  #title(at, pane) {
    const { model } = this.panes[pane];
    if (this.panes.length === 1) return model;
    const letter = LETTERS[this.orders[at].indexOf(pane)];
    return this.#isHidden(at) ? `Answer ${letter}` : `${letter} · ${model}`;
  }

  #choice(at) {
    const better = this.panes.length > 2 ? "best" : "better";
    const choices = [...this.orders[at].map((pane, place) => [LETTERS[pane], `${LETTERS[place]} ${better}`]), [TIE, "Tie"]];
    const field = element("fieldset", "vote");
    field.append(element("legend", "visually-hidden", `Which answer to prompt ${at + 1} is ${better}?`));
    for (const [value, title] of choices) {
      const label = field.appendChild(element("label"));
      const input = label.appendChild(document.createElement("input"));
      Object.assign(input, { type: "radio", name: `vote-${at}`, value, checked: this.votes[at] === value });
      input.addEventListener("change", () => this.#vote(at, value));
      label.append(element("span", "", title));
    }
    this.#votes[at] = field;
    return field;
  }

  // What is hidden of a prompt's answers, and whether its vote is open: not before all are there. One that
  // failed or was stopped will be asked again.
  #tellTrial(at) {
    const whole = this.answers[at].every((one) => one.done);
    this.#shown[at].forEach(({ title, notes }, pane) => {
      title.textContent = this.#title(at, pane);
      for (const foot of notes.querySelectorAll(".foot")) foot.hidden = this.#isHidden(at);
    });
    if (this.#votes[at]) this.#votes[at].disabled = !whole || (this.blind && this.votes[at] !== "");
  }

  #note(notes, { failed, foot }) {
    notes.replaceChildren(failed ? element("p", "notice bad", this.blind ? this.#unnamed(failed) : failed) : footed(foot));
  }

  // An error without the names of models.
  #unnamed(text) {
    return this.panes.reduce((found, { model }) => found.replaceAll(model, "…"), text);
  }

  #tell() {
    const done = this.answers.filter((some) => some.every((one) => one.done)).length;
    const whole = done === this.prompts.length;
    const failed = this.answers.filter((some) => some.some((one) => one.failed)).length;
    this.status.textContent = `${done} of ${this.prompts.length} prompts answered${failed ? `, ${failed} with an error or stopped` : ""}`;
    this.progress.value = done;
    this.prompts.forEach((_, at) => this.#tellTrial(at));
    this.go.hidden = this.running || whole;
    this.go.textContent = done ? "Run the rest" : `Run ${this.prompts.length} over ${this.panes.length} pane${this.panes.length > 1 ? "s" : ""}`;
    this.halt.hidden = !this.running;
    if (this.hides) this.hides.disabled = this.running; // the answers are being written
    this.sums.hidden = this.blind && !this.votes.some(Boolean);
    this.sums.replaceChildren(...this.panes.map((_, pane) => this.#sum(pane)), ...(this.panes.length > 1 ? [this.#undecided()] : []));
  }

  #sum(pane) {
    const done = this.answers.map((some) => some[pane]).filter((one) => one.done);
    const cost = done.reduce((sum, one) => sum + one.cost, 0);
    const ttfts = done.map((one) => one.ttft_ms).filter((ms) => ms !== null).sort((a, b) => a - b);
    const figures = [done.length && money(cost / 1e12), ttfts.length && `TTFT p50 ${duration(ttfts[Math.floor((ttfts.length - 1) / 2)])}`];
    return sum(this.panes[pane].model, this.panes.length > 1 ? this.#count(LETTERS[pane]) : done.length, figures.filter(Boolean).join(" · "));
  }

  #undecided() {
    const open = this.#count("");
    return sum("Tie", this.#count(TIE), open ? `${open} without a vote` : "all voted");
  }

  #count(choice) {
    return this.votes.filter((one) => one === choice).length;
  }
}

function sum(title, figure, note) {
  const shown = element("div", "stat");
  shown.append(element("dt", "", title), element("dd", "", String(figure)), element("dd", "note", note));
  return shown;
}
