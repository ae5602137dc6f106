// Renders model output as it streams. Nothing in it may load, run or imitate the page: links are
// http(s) only, images become their text, and the only attributes from the model are `href` and
// `start`.
import * as smd from "../../vendor/streaming-markdown.js";
import hljs from "../../vendor/highlight/core.js";
import bash from "../../vendor/highlight/bash.js";
import javascript from "../../vendor/highlight/javascript.js";
import json from "../../vendor/highlight/json.js";
import python from "../../vendor/highlight/python.js";
import sql from "../../vendor/highlight/sql.js";
import xml from "../../vendor/highlight/xml.js";

for (const [name, grammar] of Object.entries({ bash, javascript, json, python, sql, xml })) {
  hljs.registerLanguage(name, grammar);
}

// The underscores of special tokens such as <|im_start|> emphasize nothing: the parser does not see them.
const HIDDEN = "\ue05f"; // a character for private use
const NAMES = /<[|\uff5c][^\s<>]{1,60}[|\uff5c]>|<(?:start|end)_of_\w{1,20}>/g;
const BEGUN = /<[^\s<>]{0,63}$/; // may become one with the next part of the text

function renderer(root) {
  const plain = smd.default_renderer(root);
  const add_text = (data, text) => plain.add_text(data, text.replaceAll(HIDDEN, "_"));
  return { ...plain, add_text, add_token: addToken(plain), end_token: endToken(plain), set_attr: setAttr };
}

const addToken = (plain) => (data, type) => {
  if (type !== smd.IMAGE) return plain.add_token(data, type);
  const image = document.createElement("span");
  image.className = "image";
  data.nodes[data.index].appendChild(image);
  data.nodes[++data.index] = image;
};

const endToken = (plain) => (data) => {
  const node = data.nodes[data.index];
  plain.end_token(data);
  if (node.tagName === "CODE" && node.parentElement.tagName === "PRE") colour(node);
};

function setAttr(data, type, value) {
  const node = data.nodes[data.index];
  if (type === smd.HREF) setLink(node, value);
  else if (type === smd.LANG) node.dataset.language = value;
  else if (type === smd.START) node.setAttribute("start", String(parseInt(value, 10) || 1));
  else if (type === smd.CHECKED) node.setAttribute("checked", "");
}

function setLink(node, value) {
  const url = URL.canParse(value) ? new URL(value) : null;
  if (!url || !["http:", "https:"].includes(url.protocol)) return;
  node.href = url.href;
  node.rel = "noopener noreferrer nofollow";
  node.target = "_blank";
}

// Highlights a block of code in its language.
export function colour(code) {
  code.parentElement.tabIndex = 0; // so that it scrolls by keyboard
  const language = hljs.getLanguage(code.dataset.language ?? "") ? code.dataset.language : null;
  if (!language) return;
  // highlight.js escapes its input.
  code.innerHTML = hljs.highlight(code.textContent, { language, ignoreIllegals: true }).value;
}

// Renders a growing text into an element.
export class Markdown {
  held = "";

  constructor(element) {
    this.parser = smd.parser(renderer(element));
  }

  add(text) {
    const whole = this.held + text;
    this.held = whole.match(BEGUN)?.[0] ?? "";
    this.#write(whole.slice(0, whole.length - this.held.length));
  }

  end() {
    this.#write(this.held);
    smd.parser_end(this.parser);
  }

  #write(text) {
    smd.parser_write(this.parser, text.replace(NAMES, (name) => name.replaceAll("_", HIDDEN)));
  }
}
