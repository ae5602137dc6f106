// Checks the settings that are JSON while they are typed. The rules and the words about tools and other
// fields are those of the server, frontend/playground/checks.py; a test compares them.
const OWN = {
  frequency_penalty: "Frequency penalty",
  logprobs: "Show token probabilities",
  max_completion_tokens: "Max tokens",
  max_tokens: "Max tokens",
  presence_penalty: "Presence penalty",
  seed: "Seed",
  stop: "Stop sequences",
  temperature: "Temperature",
  tools: "Tools",
  top_logprobs: "Show token probabilities",
  top_p: "Top-p",
};
const SET_HERE = ["echo", "messages", "model", "n", "stream", "stream_options"];

const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);

export function schemaProblem(schema) {
  return isObject(schema) ? "" : 'A JSON schema is an object, such as {"type": "object"}.';
}

export function toolsProblem(tools) {
  if (!Array.isArray(tools)) return "`tools` must be a list of tools.";
  return tools.map(toolProblem).find(Boolean) ?? "";
}

function toolProblem(tool, at) {
  const path = `tools[${at}]`;
  if (!isObject(tool)) return `\`${path}\` must be an object.`;
  if ((tool.type ?? "function") !== "function") return `\`${path}.type\` must be \`function\`.`;
  const { function: called } = tool;
  if (!isObject(called)) return `\`${path}.function\` must be an object with a \`name\`.`;
  if (called.name === undefined) return `\`${path}.function.name\` is missing.`;
  if (typeof called.name !== "string" || !called.name) return `\`${path}.function.name\` must be a text that is not empty.`;
  const { parameters = {} } = called;
  return parameters === null || isObject(parameters) ? "" : `\`${path}.function.parameters\` must be an object: a JSON schema.`;
}

// `hasSchema`: the answer's schema is set in its own field.
export function extraProblem(extra, hasSchema) {
  if (!isObject(extra)) return "Other fields are an object, such as {\"tool_choice\": \"required\"}.";
  for (const name of Object.keys(extra)) {
    if (SET_HERE.includes(name)) return `\`${name}\` is set by the playground.`;
    if (Object.hasOwn(OWN, name)) return `\`${name}\` has its own setting: ${OWN[name]}.`;
    if (name === "response_format" && hasSchema) return "`response_format` is set by the JSON schema.";
  }
  return "";
}

// The problem of a text that should be JSON: where it stops being JSON, or what `check` says of its value.
export function jsonProblem(text, check) {
  if (!text) return "";
  let value;
  try {
    value = JSON.parse(text);
  } catch {
    return notJson(text);
  }
  return check(value);
}

// --- Where JSON goes wrong: browsers say it in different words, and some not at all -----------------

const BLANK = /[ \t\n\r]*/y;
const SCALAR = /"(?:[^"\\\u0000-\u001f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*"|-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?|true|false|null/y;

function notJson(text) {
  const { at, expected } = firstError(text);
  const before = text.slice(0, at).split("\n");
  const found = at < text.length ? `not ${JSON.stringify([...text.slice(at)][0])}` : "but the text ends";
  return `This is not JSON: line ${before.length}, column ${before.at(-1).length + 1}: ${expected} is expected, ${found}.`;
}

// Reads the text up to its first error, without recursion: a deep text must not overflow the stack.
function firstError(text) {
  let at = 0;
  const open = []; // the brackets around this place
  const take = (pattern) => {
    pattern.lastIndex = at;
    const [found] = pattern.exec(text) ?? [];
    at += found?.length ?? 0;
    return found;
  };
  let wanted = "value";
  for (;;) {
    take(BLANK);
    const next = text[at];
    const [inside] = open.slice(-1);
    if (wanted === "value" || wanted === "first value") {
      if (wanted === "first value" && next === "]") [wanted, at] = ["end", at + 1], open.pop();
      else if (next === "{" || next === "[") [wanted, at] = [next === "{" ? "first name" : "first value", at + 1], open.push(next);
      else if (take(SCALAR)) wanted = "end";
      else return { at, expected: "a value" };
    } else if (wanted === "name" || wanted === "first name") {
      if (wanted === "first name" && next === "}") [wanted, at] = ["end", at + 1], open.pop();
      else if (next === '"' && take(SCALAR)) wanted = "colon";
      else return { at, expected: "a name in double quotes" };
    } else if (wanted === "colon") {
      if (next !== ":") return { at, expected: '":"' };
      [wanted, at] = ["value", at + 1];
    } else if (next === "," && inside) {
      [wanted, at] = [inside === "{" ? "name" : "value", at + 1];
    } else if (inside && next === (inside === "{" ? "}" : "]")) {
      open.pop();
      at += 1;
    } else {
      return { at, expected: inside ? `"," or "${inside === "{" ? "}" : "]"}"` : "the end" };
    }
  }
}
