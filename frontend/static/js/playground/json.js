// Writes an answer as JSON or Markdown, depending on its first characters.
import { Markdown, colour } from "./markdown.js";
import { markSpecial } from "./special.js";

const OBJECT = /^\s*\{\s*["}]/;
const LIST = /^\s*\[\s*[[{"\]\d-]/;
const UNDECIDED = /^\s*[[{]?\s*$/;

export class Answer {
  #text = "";
  #writer; // chosen once the text is long enough

  constructor(element) {
    this.element = element;
  }

  add(text) {
    this.#text += text;
    if (this.#writer) return this.#writer.add(text);
    if (!UNDECIDED.test(this.#text)) this.#choose(OBJECT.test(this.#text) || LIST.test(this.#text));
  }

  end() {
    if (!this.#writer) this.#choose(false);
    // What began like a list may be text after all; an object may have been cut short.
    if (this.#writer instanceof Json && !OBJECT.test(this.#text) && !isJson(this.#text)) this.#choose(false);
    this.#writer.end();
    markSpecial(this.element);
  }

  #choose(json) {
    this.element.replaceChildren();
    this.#writer = json ? new Json(this.element) : new Markdown(this.element);
    this.#writer.add(this.#text);
  }
}

// JSON as it was written, highlighted once it is whole.
class Json {
  constructor(element) {
    this.code = document.createElement("code");
    this.code.dataset.language = "json";
    const block = document.createElement("pre");
    block.className = "json";
    block.append(this.code);
    element.append(block);
  }

  add(text) {
    this.code.append(text);
  }

  end() {
    this.code.textContent = this.code.textContent.trim();
    colour(this.code);
  }
}

function isJson(text) {
  try {
    JSON.parse(text);
    return true;
  } catch {
    return false;
  }
}
