// Makes the calls of npm's clients that the page of clients shows: node calls.mjs BASE_URL KEY
// Prints what became of each, a line of JSON, as tests/clients/calls/harness.py does for those of Python.
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { InferenceClient } from "@huggingface/inference";
import { embedMany, generateText, jsonSchema, Output, streamText, tool } from "ai";
import { CohereClient, CohereClientV2 } from "cohere-ai";
import OpenAI from "openai";

const [base, key] = process.argv.slice(2);
const query = "what sleeps";
const texts = ["a cat sleeps", "stocks fell", ""];
const messages = [{ role: "user", content: "hello" }];
const schema = {
  type: "object",
  properties: { colour: { enum: ["red", "blue"] } },
  required: ["colour"],
  additionalProperties: false,
};
const ranked = { model: "ranker", query, documents: texts };
const embedded = { model: "embeddings", texts, inputType: "search_document" };

const isText = (text) => typeof text === "string" && text.length > 0;
const isColour = ({ colour }) => ["red", "blue"].includes(colour);
const areVectors = (vectors) => vectors.length === texts.length && vectors.every((vector) => vector.length === 384);
const areRanked = ({ results }) => results.length === texts.length && results[0].relevanceScore > 0;

async function read(stream, textOf) {
  let text = "";
  for await (const chunk of await stream) text += textOf(chunk) ?? "";
  return text;
}

async function call(client, name, request, isRight) {
  let outcome;
  try {
    const works = isRight(await request());
    outcome = { works, words: works ? "" : "the answer is not what it should be" };
  } catch (error) {
    const words = error.body?.message ?? error.message;
    outcome = { works: false, words: `${error.constructor.name}: ${words.replace(/\s+/g, " ").trim()}` };
  }
  console.log(JSON.stringify({ client, call: name, ...outcome }));
}

const openai = new OpenAI({ apiKey: key, baseURL: `${base}/v1`, maxRetries: 0 });
const chat = { model: "decoder", messages, max_tokens: 5 };
const format = { type: "json_schema", json_schema: { name: "colour", schema, strict: true } };
await call("openai of npm", "models.list", () => openai.models.list(), ({ data }) => data.length > 0);
await call(
  "openai of npm",
  "chat.completions.create",
  () => openai.chat.completions.create({ ...chat, model: "story" }),
  ({ choices }) => isText(choices[0].message.content),
);
await call(
  "openai of npm",
  "the same, streamed",
  () =>
    read(openai.chat.completions.create({ ...chat, model: "story", stream: true }), (each) => each.choices[0]?.delta.content),
  isText,
);
await call(
  "openai of npm",
  "chat.completions.create(response_format)",
  () => openai.chat.completions.create({ ...chat, max_tokens: 300, response_format: format }),
  ({ choices }) => isColour(JSON.parse(choices[0].message.content)),
);
await call(
  "openai of npm",
  "completions.create",
  () => openai.completions.create({ model: "story", prompt: "once" }),
  ({ choices }) => isText(choices[0].text),
);
await call(
  "openai of npm",
  "responses.create",
  () => openai.responses.create({ model: "story", input: "hello" }),
  ({ output_text: text }) => isText(text),
);
await call(
  "openai of npm",
  "embeddings.create",
  () => openai.embeddings.create({ model: "embeddings", input: texts }),
  ({ data }) => areVectors(data.map(({ embedding }) => embedding)),
);
await call(
  "openai of npm",
  "embeddings.create of tokens",
  () => openai.embeddings.create({ model: "embeddings", input: [1, 2] }),
  () => true,
);

const model = (name) => new InferenceClient(key, { endpointUrl: `${base}/v1/models/${name}` });
await call(
  "@huggingface/inference",
  "featureExtraction",
  () => model("embeddings").featureExtraction({ inputs: texts }),
  areVectors,
);
await call(
  "@huggingface/inference",
  "textClassification",
  () => model("labels").textClassification({ inputs: "a text" }),
  ([{ label, score }]) => isText(label) && score > 0,
);
await call(
  "@huggingface/inference",
  "textGeneration",
  () => model("story").textGeneration({ inputs: "once" }),
  ({ generated_text: text }) => isText(text),
);
await call(
  "@huggingface/inference",
  "chatCompletion",
  () => model("story").chatCompletion({ messages }),
  ({ choices }) => isText(choices[0].message.content),
);
await call(
  "@huggingface/inference",
  "chatCompletionStream",
  () => read(model("story").chatCompletionStream({ messages }), (each) => each.choices[0]?.delta.content),
  isText,
);

const options = { token: key, environment: base, maxRetries: 0 };
const [v1, v2] = [new CohereClient(options), new CohereClientV2(options)];
await call("cohere-ai", "CohereClient.rerank", () => v1.rerank({ ...ranked, returnDocuments: true }), areRanked);
await call("cohere-ai", "CohereClientV2.rerank", () => v2.rerank({ ...ranked, maxTokensPerDoc: 4096 }), areRanked);
await call("cohere-ai", "CohereClient.embed", () => v1.embed(embedded), ({ embeddings }) => areVectors(embeddings));
await call(
  "cohere-ai",
  "CohereClientV2.embed",
  () => v2.embed({ ...embedded, embeddingTypes: ["float", "base64"] }),
  ({ embeddings }) => areVectors(embeddings.float),
);
await call(
  "cohere-ai",
  "CohereClientV2.embed of int8",
  () => v2.embed({ ...embedded, embeddingTypes: ["int8"] }),
  () => true,
);

const compatible = createOpenAICompatible({
  name: "service",
  apiKey: key,
  baseURL: `${base}/v1`,
  supportsStructuredOutputs: true,
});
const vercel = createOpenAI({ apiKey: key, baseURL: `${base}/v1` });
const settings = { prompt: "hello", maxOutputTokens: 300, temperature: 0, maxRetries: 0 };
const paint = tool({ description: "Paint a wall.", inputSchema: jsonSchema(schema) });
for (const [name, at] of [
  ["createOpenAICompatible", compatible],
  ["createOpenAI.chat", vercel.chat],
  ["createOpenAI", vercel],
]) {
  await call("ai", `generateText of ${name}`, () => generateText({ ...settings, model: at("story") }), ({ text }) => isText(text));
  await call("ai", `streamText of ${name}`, async () => streamText({ ...settings, model: at("story") }).text, isText);
}
await call(
  "ai",
  "generateText(Output.object)",
  async () =>
    (await generateText({ ...settings, model: compatible("decoder"), output: Output.object({ schema: jsonSchema(schema) }) }))
      .output,
  isColour,
);
await call(
  "ai",
  "generateText(tools)",
  async () =>
    (await generateText({ ...settings, model: compatible("decoder"), tools: { paint }, toolChoice: "required" }))
      .toolCalls[0].input,
  isColour,
);
await call(
  "ai",
  "embedMany",
  async () => (await embedMany({ model: compatible.embeddingModel("embeddings"), values: texts })).embeddings,
  areVectors,
);
