// Special tokens in a text, such as <|im_start|> and </s>: shown as such, so that nobody takes them for
// words or markup.
const SPECIAL = /<[|\uff5c][^\s<>|\uff5c]{1,60}[|\uff5c]>|<\/?s>|<\/?(?:bos|eos|pad|unk|mask|sep|cls)>|<(?:start|end)_of_\w{1,20}>|\[\/?INST\]|<<\/?SYS>>/g;

// Wrap the special tokens in the texts of an element, but not in its blocks of code. Mutates it.
export function markSpecial(root) {
  root.normalize(); // a token may have arrived in parts
  const texts = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
  const found = [];
  while (texts.nextNode()) {
    const node = texts.currentNode;
    if (node.data.search(SPECIAL) >= 0 && !node.parentElement.closest("pre, .special")) found.push(node);
  }
  for (const node of found) node.replaceWith(...parts(node.data));
}

export const isSpecial = (text) => text.trim().replace(SPECIAL, "") === "" && text.trim() !== "";

function* parts(text) {
  let at = 0;
  for (const { 0: token, index } of text.matchAll(SPECIAL)) {
    yield text.slice(at, index);
    const mark = document.createElement("code");
    [mark.className, mark.textContent, mark.title] = ["special", token, "Special token"];
    yield mark;
    at = index + token.length;
  }
  yield text.slice(at);
}
