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

const pythonArguments = (body) =>
  Object.entries(body).map(([name, value]) => `    ${name}=${python(value)},\n`).join("");

export function snippets(body, baseUrl) {
  const json = JSON.stringify(body, null, 2);
  return {
    curl: `curl ${baseUrl}/chat/completions \\
  -H "Authorization: Bearer $LORIKEET_KEY" -H "Content-Type: application/json" \\
  -d ${quoted(json)}`,
    python: `import os
from openai import OpenAI

client = OpenAI(base_url=${JSON.stringify(baseUrl)}, api_key=os.environ["LORIKEET_KEY"])
answer = client.chat.completions.create(
${pythonArguments(body)})
print(answer.choices[0].message.content)`,
    javascript: `const answer = await fetch(${JSON.stringify(`${baseUrl}/chat/completions`)}, {
  method: "POST",
  headers: {
    "Authorization": \`Bearer \${process.env.LORIKEET_KEY}\`,
    "Content-Type": "application/json",
  },
  body: JSON.stringify(${json.replaceAll("\n", "\n  ")}),
});
console.log((await answer.json()).choices[0].message.content);`,
  };
}
