// Asks with the real AI SDK: node ai.mjs BASE_URL KEY EMBEDDING_MODEL TEXT... or node ai.mjs BASE_URL KEY "" MODEL
// Prints {call: {answer} or {error, status}} as JSON.
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { embed, embedMany, generateText, jsonSchema, Output, streamText, tool } from "ai";

const [base, apiKey, embedding, ...rest] = process.argv.slice(2);
const baseURL = `${base}/v1`;
const compatible = createOpenAICompatible({
  name: "service", apiKey, baseURL, supportsStructuredOutputs: true, includeUsage: true,
});
const openai = createOpenAI({ apiKey, baseURL });
const schema = jsonSchema({
  type: "object",
  properties: { colour: { type: "string", enum: ["red", "blue"] } },
  required: ["colour"],
  additionalProperties: false,
});
const paint = tool({ description: "Paint a wall.", inputSchema: schema });
const settings = { prompt: "hello", maxOutputTokens: 300, temperature: 0, maxRetries: 0 };

async function stream(model) {
  const found = streamText({ ...settings, model, maxOutputTokens: 5 });
  return { text: await found.text, usage: await found.usage };
}

const text = async ({ text, usage }) => ({ text, usage });
const short = { ...settings, maxOutputTokens: 5 };
const calls = embedding
  ? {
      "one": async () => (await embed({ model: compatible.embeddingModel(embedding), value: rest[0] })).embedding,
      "many": async () => (await embedMany({ model: compatible.embeddingModel(embedding), values: rest })).embeddings,
      "openai": async () => (await embedMany({ model: openai.embedding(embedding), values: rest })).embeddings,
      "no model": () => embed({ model: compatible.embeddingModel("nope"), value: "a", maxRetries: 0 }),
    }
  : {
      "text": async () => text(await generateText({ ...short, model: compatible(rest[0]) })),
      "chat of openai": async () => text(await generateText({ ...short, model: openai.chat(rest[0]) })),
      "response of openai": async () => text(await generateText({ ...short, model: openai(rest[0]) })),
      "streamed": () => stream(compatible(rest[0])),
      "response streamed": () => stream(openai(rest[0])),
      "object": async () =>
        (await generateText({ ...settings, model: compatible(rest[0]), output: Output.object({ schema }) })).output,
      "call": async () =>
        (await generateText({ ...settings, model: compatible(rest[0]), tools: { paint }, toolChoice: "required" }))
          .toolCalls[0].input,
      "no model": () => generateText({ ...short, model: compatible("nope") }),
    };

const results = {};
for (const [name, call] of Object.entries(calls)) {
  try {
    results[name] = { answer: await call() };
  } catch (error) {
    results[name] = { error: error.message, status: error.statusCode };
  }
}
console.log(JSON.stringify(results));
