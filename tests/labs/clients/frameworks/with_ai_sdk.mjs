// Vercel's AI SDK with its default provider, which uses the Responses API: text, a stream, a tool, an object.
import assert from "node:assert";
import { openai } from "@ai-sdk/openai";
import { generateText, isStepCount, Output, streamText, tool } from "ai";
import { z } from "zod";

const model = openai(process.env.MODEL);
const prompt = "What is the capital of Peru?";

assert.match((await generateText({ model, prompt })).text, /Lima/);

let text = "";
for await (const part of streamText({ model, prompt }).textStream) {
  text += part;
}
assert.match(text, /Lima/);

const answer = await generateText({
  model,
  prompt: "What is the weather in San Francisco?",
  stopWhen: isStepCount(5),
  prepareStep: ({ stepNumber }) => ({ toolChoice: stepNumber ? "auto" : "required" }),
  tools: {
    weather: tool({
      description: "Get the weather in a location",
      inputSchema: z.object({ location: z.enum(["San Francisco"]) }),
      execute: async ({ location }) => `It is sunny in ${location}.`,
    }),
  },
});
assert.equal(answer.steps[0].toolResults[0].output, "It is sunny in San Francisco.");
assert.ok(answer.text);

const { output } = await generateText({
  model,
  prompt: "Extract: Jason is 25 years old.",
  output: Output.object({ schema: z.object({ name: z.string().max(20), age: z.number() }) }),
});
assert.equal(typeof output.name, "string");
