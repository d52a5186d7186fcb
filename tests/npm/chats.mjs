// Asks a model that generates with the real openai and @huggingface/inference: node chats.mjs BASE_URL KEY
// Prints {call: {answer} or {error, status, param, requestId}} as JSON.
import { InferenceClient } from "@huggingface/inference";
import OpenAI from "openai";

const [base, key] = process.argv.slice(2);
const openai = (apiKey = key) => new OpenAI({ apiKey, baseURL: `${base}/openai/v1` });
const huggingFace = (path) => new InferenceClient(key, { endpointUrl: `${base}${path}` });
const chat = { model: "tiny", messages: [{ role: "user", content: "hello" }], max_tokens: 5, temperature: 0 };

async function chunks(stream) {
  const found = [];
  for await (const chunk of await stream) found.push(chunk);
  return found;
}

const continued = { inputs: "hello", parameters: { max_new_tokens: 5, do_sample: false, seed: 1, stop: ["never there"] } };
const streamed = { ...chat, stream: true, stream_options: { include_usage: true } };
const calls = {
  "openai, streamed": () => chunks(openai().chat.completions.create(streamed)),
  "hugging face, streamed": () => chunks(huggingFace("/v1/models/tiny").chatCompletionStream(streamed)),
  "hugging face, text": () => huggingFace("/v1/models/tiny").textGeneration(continued),
  "hugging face, text streamed": () => chunks(huggingFace("/v1/models/tiny").textGenerationStream(continued)),
  "openai": () => openai().chat.completions.create(chat),
  "text": () => openai().completions.create({ model: "tiny", prompt: "hello", max_tokens: 5 }),
  "models": async () => (await openai().models.list()).data.map((model) => model.id),
  "hugging face": () => huggingFace("/v1/models/tiny").chatCompletion(chat),
  "hugging face at openai's address": () => huggingFace("/openai/v1").chatCompletion(chat),
  "bad field": () => openai().chat.completions.create({ ...chat, max_tokens: 0 }),
  "no model": () => openai().chat.completions.create({ ...chat, model: "nope" }),
  "no key": () => openai("inf_wrong").chat.completions.create(chat),
  "bad field of hugging face": () => huggingFace("/v1/models/tiny").chatCompletion({ ...chat, n: 0 }),
  "bad field of a stream of hugging face": () =>
    chunks(huggingFace("/v1/models/tiny").chatCompletionStream({ ...chat, n: 0 })),
  "bad field of a text stream of hugging face": () =>
    chunks(huggingFace("/v1/models/tiny").textGenerationStream({ inputs: "hello", parameters: { max_new_tokens: 0 } })),
};

const results = {};
for (const [name, call] of Object.entries(calls)) {
  try {
    results[name] = { answer: await call() };
  } catch (error) {
    const { status, param = null, requestID } = error;
    results[name] = { error: error.message, status, param, requestId: requestID };
  }
}
console.log(JSON.stringify(results));
