// A pane's request as programs would send it.
const quoted = (text) => `'${text.replaceAll("'", `'\\''`)}'`;

function python(value, indent = "    ") {
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (typeof value !== "object") return JSON.stringify(value);
  const [open, close] = Array.isArray(value) ? "[]" : "{}";
  const inner = Array.isArray(value)
    ? value.map((one) => python(one, indent))
    : Object.entries(value).map(([key, one]) => `${JSON.stringify(key)}: ${python(one, indent)}`);
  return open + inner.join(", ") + close;
}

// The arguments of the SDK's method; Python's takes any other field in `extra_body`.
export const OF_SDK = new Set(["frequency_penalty", "logit_bias", "logprobs", "max_tokens", "messages", "model", "parallel_tool_calls", "presence_penalty", "reasoning_effort", "response_format", "seed", "stop", "temperature", "tool_choice", "tools", "top_logprobs", "top_p"]);

function pythonArguments(body) {
  const split = Object.groupBy(Object.entries(body), ([name]) => (OF_SDK.has(name) ? "own" : "extra"));
  const own = split.own ?? [];
  if (split.extra) own.push(["extra_body", Object.fromEntries(split.extra)]);
  return own.map(([name, value]) => `    ${name}=${python(value)},\n`).join("");
}

function javascriptFields(body) {
  const indented = (value) => JSON.stringify(value, null, 2).replaceAll("\n", "\n  ");
  return Object.entries(body).map(([name, value]) => `  ${/^[A-Za-z_]\w*$/.test(name) ? name : JSON.stringify(name)}: ${indented(value)},\n`).join("");
}

// A call of a tool is not in the content of the message.
const output = (body) => `answer.choices[0].message${body.tools ? "" : ".content"}`;

// The request for curl, and in the words of OpenAI's SDKs for Python and JavaScript.
export function snippets(body, baseUrl) {
  return {
    curl: `curl ${baseUrl}/chat/completions \\
  -H "Authorization: Bearer $LORIKEET_KEY" -H "Content-Type: application/json" \\
  -d ${quoted(JSON.stringify(body, null, 2))}`,
    python: `import os
from openai import OpenAI

client = OpenAI(base_url=${JSON.stringify(baseUrl)}, api_key=os.environ["LORIKEET_KEY"])
answer = client.chat.completions.create(
${pythonArguments(body)})
print(${output(body)})`,
    javascript: `import OpenAI from "openai";

const client = new OpenAI({ baseURL: ${JSON.stringify(baseUrl)}, apiKey: process.env.LORIKEET_KEY });
const answer = await client.chat.completions.create({
${javascriptFields(body)}});
console.log(${output(body)});`,
  };
}
