// The client parses each answer, and must return its body as data or as an error.
import assert from "node:assert";
import { readFileSync } from "node:fs";
import createClient from "openapi-fetch";

for (const answer of JSON.parse(readFileSync(process.argv[2], "utf8"))) {
  const headers = { "content-type": answer.media_type };
  const fetch = async () => new Response(answer.body, { status: answer.status, headers });
  const client = createClient({ baseUrl: "http://localhost", fetch });
  const json = answer.media_type.endsWith("json");
  const read = await client[answer.method.toUpperCase()](answer.path, {
    params: { path: { id: "1", name: "a", number: 1, alias: "b", slug: "c", model: "m" } },
    parseAs: json ? "json" : "text",
  });
  const body = json ? JSON.parse(answer.body) : answer.body;
  assert.deepStrictEqual(answer.status < 400 ? read.data : read.error, body);
}
