// Shows an answer token by token, each with its probability and its alternatives.
import { isSpecial } from "./special.js";

const utf8 = new TextDecoder("utf-8", { fatal: true });
const SURE = 0.5;
const DOUBTFUL = 0.2;

function decoded(bytes) {
  try {
    return utf8.decode(new Uint8Array(bytes));
  } catch {
    return null;
  }
}

// A character of UTF-8 has at most four bytes: more incomplete bytes are not a character.
const MOST_BYTES_OF_A_CHARACTER = 4;

function incomplete(bytes) {
  for (let back = 1; back < MOST_BYTES_OF_A_CHARACTER && back <= bytes.length; back++) {
    const byte = bytes[bytes.length - back];
    if (byte >= 0xf0) return back < 4;
    if (byte >= 0xe0) return back < 3;
    if (byte >= 0xc0) return back < 2;
    if (byte < 0x80) return false;
  }
  return false;
}

// Joins tokens that are parts of one character, by their bytes; vLLM gives the whole character to the
// last of them. Call `take` with each; it returns the completed piece, { text, tokens }, or null.
class Joiner {
  #held = [];

  take(token) {
    this.#held.push(token);
    const bytes = this.#held.flatMap((one) => one.bytes ?? [...new TextEncoder().encode(one.token)]);
    const text = decoded(bytes);
    const whole = text === null ? !incomplete(bytes) : text !== "";
    return whole ? this.rest(text) : null;
  }

  // Returns what is held, complete or not.
  rest(text = null) {
    const tokens = this.#held.splice(0);
    if (!tokens.length) return null;
    return { text: text ?? tokens.map((one) => one.token).join(""), tokens };
  }
}

// Where a piece is in `text` from `at`: { skip (characters before it), length }, null if it is not in
// it, undefined if more text is needed to know. Tokenizers differ in which token has the space, and
// invalid bytes are only in the text, as U+FFFD.
function place(text, at, piece) {
  const rest = text.slice(at);
  const [ahead, bare] = [loose(rest), loose(piece)];
  const skip = rest.length - ahead.length;
  for (const [skipped, part] of [[0, piece], [0, bare], [skip, bare]]) {
    if (part && rest.startsWith(part, skipped)) return { skip: skipped, length: part.length };
  }
  return ahead.length >= bare.length ? null : undefined;
}

const loose = (text) => text.replace(/^[\s\ufffd]+/u, "");

const probability = (token) => Math.exp(Math.min(0, token.logprob));

function percent(share) {
  if (share > 0 && share < 0.0005) return "< 0.1%";
  return `${(share * 100).toFixed(1)}%`;
}

// A token made readable: spaces and line ends become symbols.
const shown = (text) => text.replaceAll("\n", "⏎").replaceAll("\t", "⇥").replaceAll(" ", "␣") || "(no text)";

// Writes into an element. The text is always exactly the engine's: a token that is not in it (the end
// of the answer) is shown beside it as a symbol, and text without a token is shown as it is.
export class Tokens {
  #text = "";
  #at = 0;
  #joiner = new Joiner();
  #pieces = [];

  constructor(element) {
    this.element = element;
    element.classList.add("tokens");
    element.setAttribute("role", "group");
    element.setAttribute("aria-label", "Tokens of the answer; use the arrow keys to move between them");
    element.addEventListener("keydown", (event) => this.#pressed(event));
    for (const kind of ["focusin", "click", "mouseover"]) {
      element.addEventListener(kind, (event) => this.#look(event.target));
    }
    for (const kind of ["focusout", "mouseleave"]) element.addEventListener(kind, hide);
  }

  add(text, tokens = []) {
    this.#text += text;
    for (const token of tokens) {
      const piece = this.#joiner.take(token);
      if (piece) this.#pieces.push(piece);
    }
    this.#write();
  }

  end() {
    const rest = this.#joiner.rest();
    if (rest) this.#pieces.push(rest);
    this.#write({ all: true });
    this.#plain(this.#text.length);
  }

  #write({ all = false } = {}) {
    while (this.#pieces.length) {
      const found = place(this.#text, this.#at, this.#pieces[0].text);
      if (found === undefined && !all) return;
      const piece = this.#pieces.shift();
      if (found) {
        this.#plain(this.#at + found.skip);
        this.#at += found.length;
        this.#span(this.#text.slice(this.#at - found.length, this.#at), piece.tokens);
      } else this.#span(shown(piece.text), piece.tokens, "sign");
    }
  }

  #plain(until) {
    this.element.append(this.#text.slice(this.#at, until));
    this.#at = until;
  }

  #span(text, tokens, kind = "") {
    const span = document.createElement("span");
    const least = Math.min(...tokens.map(probability));
    const doubt = least < DOUBTFUL ? "doubtful" : least < SURE ? "unsure" : "";
    span.className = ["token", kind, isSpecial(text) && "special", doubt].filter(Boolean).join(" ");
    span.textContent = text;
    span.tokens = tokens;
    span.setAttribute("role", "button");
    if (!text.trim()) span.setAttribute("aria-label", text.includes("\n") ? "line end" : "blank");
    span.tabIndex = this.element.querySelector(".token") ? -1 : 0;
    this.element.append(span);
  }

  #pressed(event) {
    const span = event.target.closest(".token");
    const all = [...this.element.querySelectorAll(".token")];
    const to = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (event.key === "Escape" && hide()) event.stopPropagation();
    const next = to ? all[all.indexOf(span) + to] : { Home: all[0], End: all.at(-1) }[event.key];
    if (!span || !next) return;
    event.preventDefault();
    span.tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
  }

  #look(target) {
    const span = target.closest(".token");
    if (span) show(span);
    else hide();
  }
}

const TIP = "token-tip";

function show(span) {
  const tip = document.getElementById(TIP);
  tip.replaceChildren(...span.tokens.map(table));
  document.querySelector(`[aria-describedby=${TIP}]`)?.removeAttribute("aria-describedby");
  span.setAttribute("aria-describedby", TIP);
  tip.hidden = false;
  const at = span.getClientRects()[0] ?? span.getBoundingClientRect();
  const below = at.bottom + 6 + tip.offsetHeight < innerHeight;
  tip.style.left = `${Math.max(8, Math.min(at.left, innerWidth - tip.offsetWidth - 8))}px`;
  tip.style.top = `${below ? at.bottom + 6 : Math.max(8, at.top - 6 - tip.offsetHeight)}px`;
}

// Returns whether there was something to hide.
function hide() {
  const tip = document.getElementById(TIP);
  if (tip.hidden) return false;
  tip.hidden = true;
  document.querySelector(`[aria-describedby=${TIP}]`)?.removeAttribute("aria-describedby");
  return true;
}

function table(token) {
  const made = document.createElement("table");
  made.createCaption().textContent = `${shown(token.token)} ${percent(probability(token))}`;
  const others = token.top_logprobs ?? [];
  for (const one of others) {
    const row = made.insertRow();
    const name = document.createElement("th");
    name.scope = "row";
    name.textContent = shown(one.token);
    const bar = document.createElement("meter");
    bar.value = probability(one);
    bar.setAttribute("aria-hidden", "true");
    row.append(name);
    row.insertCell().textContent = percent(probability(one));
    row.insertCell().append(bar);
    if (one.token === token.token) row.className = "taken";
  }
  return made;
}
