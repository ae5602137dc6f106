// The messages of one pane as a tree: messages with the same parent are versions of each other, one of
// which is chosen. The chosen messages, from the first on, are the conversation that is shown.
export class Tree {
  #nodes = new Map(); // id -> { id, parent, role, content, children, chosen, ... }
  #root = { id: null, children: [], chosen: null };
  #last = 0;

  // Add a message after `parent` (null: the first) and choose it; returns it.
  add(parent, role, content, fields = {}) {
    return this.#insert({ ...fields, id: this.#last + 1, parent: parent?.id ?? null, role, content });
  }

  get(id) {
    return this.#nodes.get(id);
  }

  // The messages that are shown, in order.
  get path() {
    const found = [];
    for (let id = this.#root.chosen; id !== null; id = found.at(-1).chosen) found.push(this.get(id));
    return found;
  }

  get leaf() {
    return this.path.at(-1) ?? null;
  }

  // The versions of a message, as { at (from 0), of (ids) }.
  versions(node) {
    const { children } = this.#parent(node);
    return { at: children.indexOf(node.id), of: children };
  }

  // Show this version, with the messages that followed it.
  choose(node) {
    this.#parent(node).chosen = node.id;
  }

  // Add another version of a message; the earlier one keeps what followed it.
  edit(node, content) {
    return this.add(this.#nodes.get(node.parent) ?? null, node.role, content);
  }

  // The messages for the model, up to this one. Answers without text are left out.
  turns(node) {
    const found = [];
    for (let one = node; one; one = this.get(one.parent)) found.unshift(one);
    return found.flatMap(messages);
  }

  // The tree to store, which `of` reads. Answers in progress, or that failed before their first word,
  // are included only with `running`.
  stored({ running = false } = {}) {
    const kept = (node) => running || (!node.running && (messages(node).length > 0 || node.children.length > 0));
    return {
      nodes: [...this.#nodes.values()].filter(kept).map(fields),
      leaf: this.path.findLast(kept)?.id ?? null,
    };
  }

  static of({ nodes, leaf = null }) {
    const tree = new Tree();
    for (const node of nodes) tree.#insert(node);
    for (let one = tree.get(leaf); one; one = tree.get(one.parent)) tree.choose(one);
    return tree;
  }

  #parent(node) {
    return this.get(node.parent) ?? this.#root;
  }

  #insert(fields) {
    const node = { ...fields, children: [], chosen: null };
    this.#nodes.set(node.id, node);
    this.#parent(node).children.push(node.id);
    this.choose(node);
    this.#last = Math.max(this.#last, node.id);
    return node;
  }
}

// The messages that the model gets for this one: one per tool result, none if it is empty.
function messages({ role, content, calls, results }) {
  const given = Object.entries(results ?? {}).map(([id, text]) => ({ role: "tool", content: text, tool_call_id: id }));
  if (calls?.length) return [{ role, content, tool_calls: calls }];
  return content ? [...given, { role, content }] : given;
}

function fields({ id, parent, role, content, calls, results, foot, why }) {
  const more = Object.entries({ calls: calls?.length && calls, results, foot, why }).filter(([, value]) => value);
  return { id, parent, role, content, ...Object.fromEntries(more) };
}
