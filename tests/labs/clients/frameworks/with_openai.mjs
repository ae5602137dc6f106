// OpenAI's SDK for Node.js: a chat, a stream, and a loop of tool calls.
import assert from "node:assert";
import OpenAI from "openai";

const client = new OpenAI();
const model = process.env.MODEL;
const messages = [{ role: "user", content: "What is the capital of Peru?" }];

const answer = await client.chat.completions.create({ model, messages });
assert.match(answer.choices[0].message.content, /Lima/);

let text = "";
for await (const chunk of await client.chat.completions.create({ model, messages, stream: true })) {
  text += chunk.choices[0]?.delta?.content ?? "";
}
assert.match(text, /Lima/);

const runner = client.chat.completions.runTools({
  model,
  messages: [{ role: "user", content: "How is the weather in Paris?" }],
  tool_choice: { type: "function", function: { name: "getWeather" } },
  tools: [
    {
      type: "function",
      function: {
        name: "getWeather",
        parse: JSON.parse,
        parameters: { type: "object", properties: { city: { enum: ["Paris"] } }, required: ["city"] },
        function: ({ city }) => `It is sunny in ${city}.`,
      },
    },
  ],
});
assert.equal(await runner.finalFunctionToolCallResult(), "It is sunny in Paris.");
