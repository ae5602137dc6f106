// The messages of one pane as a tree: messages with one parent are versions of each other, of which
// one is chosen. What is chosen, from the first message on, is the conversation that is shown.
export class Tree {
  #nodes = new Map(); // id -> { id, parent, role, content, children, chosen, ... }
  #root = { id: null, children: [], chosen: null };
  #last = 0;

  // Follow `parent` (null: begin) with a message, which is chosen; returns it.
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

  // Show this version; what followed it is shown with it.
  choose(node) {
    this.#parent(node).chosen = node.id;
  }

  // Another version of a message; the earlier one stays, with what followed it.
  edit(node, content) {
    return this.add(this.#nodes.get(node.parent) ?? null, node.role, content);
  }

  // What a model is told up to a message. An answer without text is no turn.
  turns(node) {
    const found = [];
    for (let one = node; one; one = this.get(one.parent)) found.unshift(one);
    return found.filter((one) => one.content).map(({ role, content }) => ({ role, content }));
  }

  // To be stored: only the fields that are named, without messages for which `skip` holds.
  toJSON(fields = ["foot", "why"], skip = (node) => node.running) {
    const nodes = [...this.#nodes.values()].filter((node) => !skip(node));
    const kept = (node) => Object.fromEntries(fields.filter((name) => node[name]).map((name) => [name, node[name]]));
    return {
      nodes: nodes.map((node) => ({
        id: node.id, parent: node.parent, role: node.role, content: node.content, ...kept(node),
      })),
      leaf: this.path.findLast((node) => !skip(node))?.id ?? null,
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
